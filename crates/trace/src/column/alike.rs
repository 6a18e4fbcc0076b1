//! Compressing columns that repeat in the same places.
//!
//! What code did a record says its kind, size and gap: where one of these columns repeats, the
//! others do. zstd spends nearly all its time on finding repeats, so they are found once, as far as
//! all of the columns repeat, and zstd is given what was found: it writes a frame as ever. The few
//! bytes that are no part of a repeat stand in it as they are, and are all that the frames of the
//! other columns have otherwise. Any zstd reads them.

mod frame;
#[cfg(target_arch = "x86_64")]
mod wide;

use std::ptr::NonNull;

use zstd::zstd_safe::zstd_sys as sys;

use crate::hash::spread;

/// How many columns are compressed together.
pub(super) const COLUMNS: usize = 3;
type Columns<'a> = [&'a [u8]; COLUMNS];

/// Most bytes of a block of a zstd frame, over whose end no repeat goes.
const BLOCK: usize = 1 << 17;
/// Bytes of each column that a repeat begins with, at least.
const LEAST: usize = 8;
/// Places of the table that beginnings are looked up in (log2): it stays in the cache.
const TABLE_BITS: u32 = 13;
/// Of so many bytes one at most may be no part of a repeat; else columns are better searched alone.
const SCARCE: usize = 16;
/// zstd's logarithm of how far back a repeat may be: more than a page has.
const WINDOW: i32 = 24;

/// Finds the repeats of columns and compresses each with them.
pub(super) struct Alike {
    context: Context,
    wide_registers: bool,
    table: Vec<u32>,
    /// For each block: repeats, each with the bytes before it that are none, then what is left.
    sequences: Vec<sys::ZSTD_Sequence>,
    literals: Vec<u8>,
    frame: Vec<u8>,
}

/// A compression context of zstd.
struct Context(NonNull<sys::ZSTD_CCtx>);

// SAFETY: a context is used by one thread at a time, whichever that is.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `ZSTD_createCCtx`, and not used any more.
        unsafe { sys::ZSTD_freeCCtx(self.0.as_ptr()) };
    }
}

impl Alike {
    /// `None` when zstd has no memory, or knows its own parameters no longer.
    pub(super) fn new(level: i32) -> Option<Self> {
        // SAFETY: no precondition.
        let context = Context(NonNull::new(unsafe { sys::ZSTD_createCCtx() })?);
        let explicit = sys::ZSTD_SequenceFormat_e::ZSTD_sf_explicitBlockDelimiters;
        let as_they_are = sys::ZSTD_ParamSwitch_e::ZSTD_ps_disable;
        for (parameter, value) in [
            (sys::ZSTD_cParameter::ZSTD_c_compressionLevel, level),
            (sys::ZSTD_cParameter::ZSTD_c_windowLog, WINDOW),
            // `ZSTD_c_blockDelimiters`
            (sys::ZSTD_cParameter::ZSTD_c_experimentalParam11, explicit as i32),
            // `ZSTD_c_literalCompressionMode`
            (sys::ZSTD_cParameter::ZSTD_c_experimentalParam5, as_they_are as i32),
        ] {
            // SAFETY: the context is alive; a parameter that is refused gives an error.
            let code = unsafe { sys::ZSTD_CCtx_setParameter(context.0.as_ptr(), parameter, value) };
            result(code)?;
        }
        Some(Self {
            context,
            wide_registers: crate::wide_registers(),
            table: vec![0; 1 << TABLE_BITS],
            sequences: Vec::new(),
            literals: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// Find the repeats of `columns`, which are of one length. Whether they nearly all are repeats,
    /// so that [`Self::compress`] may be called.
    pub(super) fn find(&mut self, columns: Columns<'_>) -> bool {
        let length = columns[0].len();
        let of_one_length = columns.iter().all(|column| column.len() == length);
        if !of_one_length || length > 1 << WINDOW {
            return false;
        }
        self.table.fill(0);
        self.sequences.clear();
        self.search(&columns);
        let literals: usize = self.sequences.iter().map(|of| of.litLength as usize).sum();
        literals <= length / SCARCE
    }

    fn search(&mut self, columns: &Columns<'_>) {
        #[cfg(target_arch = "x86_64")]
        if self.wide_registers {
            // SAFETY: the processor has the instructions.
            return unsafe { wide::find(columns, &mut self.table, &mut self.sequences) };
        }
        find(columns, &mut self.table, &mut self.sequences, same);
    }

    /// Compress the columns that [`Self::find`] had. `None` when zstd would rather not.
    pub(super) fn compress(&mut self, columns: Columns<'_>) -> Option<[Vec<u8>; COLUMNS]> {
        self.gather_literals(columns[0]);
        let first = self.compress_sequences(columns[0].len())?;
        let places = frame::literals(&first)?;
        let mut frames = [const { Vec::new() }; COLUMNS];
        for (frame, column) in frames[1..].iter_mut().zip(&columns[1..]) {
            self.gather_literals(column);
            frame.clone_from(&first);
            let mut literals = &self.literals[..];
            for place in &places {
                let (own, rest) = literals.split_at_checked(place.len())?;
                frame[place.clone()].copy_from_slice(own);
                literals = rest;
            }
        }
        frames[0] = first;
        Some(frames)
    }

    /// What of `column` is no part of a repeat.
    fn gather_literals(&mut self, column: &[u8]) {
        self.literals.clear();
        let mut at = 0;
        for of in &self.sequences {
            let (literals, repeat) = (of.litLength as usize, of.matchLength as usize);
            self.literals.extend_from_slice(&column[at..at + literals]);
            at += literals + repeat;
        }
    }

    /// The frame of a column of `length` bytes, from the sequences and its literals.
    fn compress_sequences(&mut self, length: usize) -> Option<Vec<u8>> {
        /// zstd reads whole words of literals.
        const MARGIN: usize = 8;
        self.literals.reserve(MARGIN);
        self.frame.clear();
        self.frame.reserve(zstd::zstd_safe::compress_bound(length));
        // SAFETY: pointers and lengths are those of the vectors. The sequences have the literals
        // that were gathered by them, and a delimiter for each block of at most `BLOCK` bytes.
        let code = unsafe {
            sys::ZSTD_compressSequencesAndLiterals(
                self.context.0.as_ptr(),
                self.frame.as_mut_ptr().cast(),
                self.frame.capacity(),
                self.sequences.as_ptr(),
                self.sequences.len(),
                self.literals.as_ptr().cast(),
                self.literals.len(),
                self.literals.capacity(),
                length,
            )
        };
        let written = result(code)?;
        // SAFETY: so many have been written.
        unsafe { self.frame.set_len(written) };
        Some(self.frame.clone())
    }
}

fn result(code: usize) -> Option<usize> {
    // SAFETY: no precondition.
    (unsafe { sys::ZSTD_isError(code) } == 0).then_some(code)
}

fn word(column: &[u8], at: usize) -> u64 {
    let (words, _) = column[at..].as_chunks::<8>();
    u64::from_le_bytes(words[0])
}

/// Which bytes differ in any of the columns: not 0, the first as the lowest.
#[inline(always)]
fn difference(columns: &Columns<'_>, one: usize, other: usize) -> u64 {
    columns.iter().fold(0, |all, column| all | word(column, one) ^ word(column, other))
}

/// Whether what is `distance` before begins alike.
#[inline(always)]
fn repeats(columns: &Columns<'_>, at: usize, distance: usize) -> bool {
    difference(columns, at - distance, at) == 0
}

#[inline(always)]
fn place(columns: &Columns<'_>, at: usize) -> usize {
    let mixed = columns.iter().fold(0u64, |all, column| all.rotate_left(23) ^ word(column, at));
    spread(mixed, TABLE_BITS)
}

/// Up to where, `end` at most, the columns from `late` on are what they are from `early` on.
fn same(columns: &Columns<'_>, mut early: usize, mut late: usize, end: usize) -> usize {
    while late + 8 <= end {
        let different = difference(columns, early, late);
        if different != 0 {
            return late + different.trailing_zeros() as usize / 8;
        }
        (early, late) = (early + 8, late + 8);
    }
    while late < end && columns.iter().all(|column| column[early] == column[late]) {
        (early, late) = (early + 1, late + 1);
    }
    late
}

/// The repeats, greedily: at each place either with the distance of one of the two before or what
/// began alike last, as zstd's own fast search has it. `same` is [`same`] or does the same.
#[inline(always)]
fn find(
    columns: &Columns<'_>,
    table: &mut [u32],
    sequences: &mut Vec<sys::ZSTD_Sequence>,
    same: impl Fn(&Columns<'_>, usize, usize, usize) -> usize,
) {
    let length = columns[0].len();
    let mut push = |offset, literals, repeat| {
        let [offset, literals, repeat] = [offset, literals, repeat].map(|number| number as u32);
        sequences.push(sys::ZSTD_Sequence {
            offset,
            litLength: literals,
            matchLength: repeat,
            rep: 0,
        });
    };
    let mut distances = [1, 2];
    for start in (0..length).step_by(BLOCK) {
        let end = length.min(start + BLOCK);
        let last = end.saturating_sub(LEAST);
        let (mut done, mut at) = (start, start);
        while at < last {
            let slot = &mut table[place(columns, at)];
            let earlier = std::mem::replace(slot, at as u32) as usize;
            let distance = if at >= distances[0] && repeats(columns, at, distances[0]) {
                distances[0]
            } else if earlier < at && repeats(columns, at, at - earlier) {
                at - earlier
            } else {
                // Faster where nothing repeats.
                at += 1 + (at - done) / 64;
                continue;
            };
            let until = same(columns, at + LEAST - distance, at + LEAST, end);
            let mut from = at;
            while from > done.max(distance) && {
                let before = |column: &[u8]| column[from - 1] ^ column[from - 1 - distance];
                columns.iter().fold(0, |all, column| all | before(column)) == 0
            } {
                from -= 1;
            }
            push(distance, from - done, until - from);
            if until < last {
                for known in [at + 2, until - 2] {
                    table[place(columns, known)] = known as u32;
                }
            }
            if distance != distances[0] {
                distances = [distance, distances[0]];
            }
            (done, at) = (until, until);
            while at < last && at >= distances[1] && repeats(columns, at, distances[1]) {
                distances.swap(0, 1);
                let until = same(columns, at + LEAST - distances[0], at + LEAST, end);
                push(distances[0], 0, until - at);
                table[place(columns, at)] = at as u32;
                (done, at) = (until, until);
            }
        }
        push(0, end - done, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Three columns of a program that runs a few pieces of code in some order; now and then a
    /// record is other than the code says.
    fn columns(pieces: &[Vec<(u8, u8, u8)>], turns: &[(usize, u16)]) -> [Vec<u8>; COLUMNS] {
        let mut columns = [const { Vec::new() }; COLUMNS];
        for &(piece, odd) in turns {
            for (at, &(kind, size, instr)) in pieces[piece % pieces.len()].iter().enumerate() {
                let instr = if at == usize::from(odd) { instr.wrapping_add(1) } else { instr };
                for (column, value) in columns.iter_mut().zip([kind, size, instr]) {
                    column.push(value);
                }
            }
        }
        columns
    }

    fn frames(wide: bool, columns: &[Vec<u8>; COLUMNS]) -> Option<[Vec<u8>; COLUMNS]> {
        let mut alike = Alike::new(1).unwrap();
        alike.wide_registers &= wide;
        let columns = columns.each_ref().map(Vec::as_slice);
        // Used again, as an encoder is.
        alike.find([&[7; 100]; COLUMNS]);
        alike.find(columns).then(|| alike.compress(columns)).flatten()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// What zstd reads is what was compressed, and all processors find the same.
        #[test]
        fn frames_are_read_by_zstd(
            pieces in prop::collection::vec(
                prop::collection::vec((0u8..3, 0u8..9, 0u8..20), 1..120), 1..6),
            turns in prop::collection::vec((0usize..6, 0u16..2000), 1..6000),
        ) {
            let columns = columns(&pieces, &turns);
            let found = frames(true, &columns);
            prop_assert_eq!(&found, &frames(false, &columns));
            for (frame, column) in found.iter().flatten().zip(&columns) {
                prop_assert_eq!(&zstd::bulk::decompress(frame, column.len()).unwrap(), column);
            }
        }

        /// The search takes any bytes.
        #[test]
        fn repeats_are_repeats(
            bytes in prop::collection::vec((0u8..3, 0u8..2, 0u8..2), 0..400),
            times in 1usize..5,
        ) {
            let columns = columns(&[bytes], &vec![(0, u16::MAX); times]);
            let columns = columns.each_ref().map(Vec::as_slice);
            let length = columns[0].len();
            for wide in [true, false] {
                let mut alike = Alike::new(1).unwrap();
                alike.wide_registers &= wide;
                alike.find(columns);
                let mut at = 0;
                for of in &alike.sequences {
                    at += of.litLength as usize;
                    let (distance, repeat) = (of.offset as usize, of.matchLength as usize);
                    prop_assert!(distance <= at && (distance > 0) == (repeat > 0));
                    for at in at..at + repeat {
                        prop_assert!(columns.iter().all(|c| c[at] == c[at - distance]));
                    }
                    at += repeat;
                }
                prop_assert_eq!(at, length);
            }
        }
    }

    #[test]
    fn a_program_has_repeats_and_noise_has_none() {
        let pieces: Vec<Vec<_>> = (1..5u8)
            .map(|piece| (0..90).map(|at| (at % 3, piece, (at + piece) % 7)).collect())
            .collect();
        let turns: Vec<_> = (0..20_000usize).map(|at| (at * at / 7, u16::MAX)).collect();
        let program = columns(&pieces, &turns);
        // More than a block of zstd's.
        assert!(program[0].len() > 10 * BLOCK);
        let found = frames(true, &program).unwrap();
        for (frame, column) in found.iter().zip(&program) {
            assert!(frame.len() < column.len() / 50, "{} of {}", frame.len(), column.len());
            assert_eq!(&zstd::bulk::decompress(frame, column.len()).unwrap(), column);
        }

        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let noise = [(); COLUMNS].map(|()| (0..50_000).map(|_| noise()).collect::<Vec<_>>());
        assert_eq!(frames(true, &noise), None);
        let uneven = [&noise[0][..], &noise[1][..9], &noise[2][..]];
        assert!(!Alike::new(1).unwrap().find(uneven));
    }
}
