//! Data pages of indices into a dictionary (Parquet's `RLE_DICTIONARY`): the width of an index, then runs of
//! indices. Bit 0 of a run's header is 0 for one repeated index, 1 for bit-packed groups of eight; the bits
//! above are the number of repetitions or groups.

/// Bytes reserved before the indices, for their width (one byte) and the header of their run.
const HEAD: usize = 16;

/// The 8-bit indices of a column being gathered, with room before them, so that they become a page
/// without a copy.
pub(super) struct Indices(Vec<u8>);

impl Default for Indices {
    fn default() -> Self {
        Self(vec![0; HEAD])
    }
}

impl Indices {
    pub(super) fn len(&self) -> usize {
        self.0.len() - HEAD
    }

    pub(super) fn clear(&mut self) {
        self.0.truncate(HEAD);
    }

    /// Reserve room for `count` indices in total and the padding of the page.
    pub(super) fn reserve(&mut self, count: usize) {
        self.0.reserve_exact((HEAD + count + 8).saturating_sub(self.0.len()));
    }

    /// Whether there is room for `count` indices.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.0.capacity() >= HEAD + count
    }

    pub(super) fn extend_from_slice(&mut self, indices: &[u8]) {
        self.0.extend_from_slice(indices);
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.0[HEAD..]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0[HEAD..]
    }

    /// The index, if all elements have the same one.
    pub(super) fn constant(&self) -> Option<u8> {
        let (&first, rest) = self.as_slice().split_first()?;
        rest.iter().all(|&index| index == first).then_some(first)
    }

    /// Turn the indices into a page, which pads them to a multiple of eight.
    pub(super) fn page(&mut self) -> &[u8] {
        let count = self.len();
        self.0.resize(HEAD + count.next_multiple_of(8), 0);
        let mut head = Vec::with_capacity(HEAD);
        start(&mut head, count, 8);
        let from = HEAD - head.len();
        self.0[from..HEAD].copy_from_slice(&head);
        &self.0[from..]
    }
}

/// One bit-packed run of `count` indices of `bits` bits (8 or 16), in groups of eight. `page`
/// must be empty; `fill` appends the bytes of the indices to it.
pub(super) fn packed(
    mut page: Vec<u8>,
    count: usize,
    bits: u8,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let length = count.div_ceil(8) * usize::from(bits);
    page.reserve(length + HEAD);
    start(&mut page, count, bits);
    let end = page.len() + length;
    fill(&mut page);
    page.resize(end, 0);
    page
}

/// A page of one run: index 0, `count` times.
pub(super) fn constant(count: usize) -> Vec<u8> {
    let mut bytes = vec![8];
    varint(&mut bytes, count << 1);
    bytes.push(0);
    bytes
}

/// Append the width of the indices and the header of one bit-packed run.
fn start(page: &mut Vec<u8>, count: usize, bits: u8) {
    page.push(bits);
    varint(page, count.div_ceil(8) << 1 | 1);
}

/// Append `value` in LEB128.
pub(super) fn varint(bytes: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
