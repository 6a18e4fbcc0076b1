//! Where a zstd frame holds its literals (RFC 8878, section 3.1.1).

use std::ops::Range;

/// The places of the literals, in order, in a frame all of whose blocks are compressed and have
/// them as they are. `None` for any other frame.
pub(super) fn literals(frame: &[u8]) -> Option<Vec<Range<usize>>> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const COMPRESSED: u32 = 2;
    let (&descriptor, _) = frame.strip_prefix(&MAGIC)?.split_first()?;
    let single_segment = descriptor >> 5 & 1;
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = [usize::from(single_segment), 2, 4, 8][usize::from(descriptor >> 6)];
    let mut at = MAGIC.len() + 1 + usize::from(1 - single_segment) + dictionary + content;
    let mut places = Vec::new();
    loop {
        let header = frame.get(at..at + 3)?;
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let (is_last, form, size) = (header & 1 != 0, header >> 1 & 3, header >> 3);
        let block = at + 3..at + 3 + size as usize;
        let first = u32::from(*frame.get(block.clone())?.first()?);
        // 0: as they are.
        if form != COMPRESSED || first & 3 != 0 {
            return None;
        }
        let byte = |at| Some(u32::from(*frame.get(block.start + at)?));
        let (length, header) = match first >> 2 & 3 {
            0 | 2 => (first >> 3, 1),
            1 => (first >> 4 | byte(1)? << 4, 2),
            _ => (first >> 4 | byte(1)? << 4 | byte(2)? << 12, 3),
        };
        let start = block.start + header;
        let place = start..start + length as usize;
        if place.end > block.end {
            return None;
        }
        places.push(place);
        at = block.end;
        if is_last {
            return (at == frame.len()).then_some(places);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_will_do(mut bytes in prop::collection::vec(any::<u8>(), 0..60), magic in any::<bool>()) {
            if magic {
                bytes.splice(..0, [0x28, 0xb5, 0x2f, 0xfd]);
            }
            for place in literals(&bytes).into_iter().flatten() {
                prop_assert!(place.end <= bytes.len());
            }
        }
    }

    #[test]
    fn frames_whose_literals_are_compressed_are_refused() {
        let text: String = (0..5000).map(|number| format!("{} ", number * number % 9973)).collect();
        let frame = zstd::bulk::compress(text.as_bytes(), 1).unwrap();
        assert_eq!(literals(&frame), None);
        assert_eq!(literals(&frame[..frame.len() - 1]), None);
    }
}
