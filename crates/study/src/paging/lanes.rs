//! Lanes of a 64-byte register of bytes.

/// Bytes of a register.
pub const LANES: usize = 64;

/// For each lane the one before it, of two registers in a row.
pub const BEFORE: [u8; LANES] = lanes_before(1);

/// For each lane the one so far before it, of two registers in a row.
pub const fn lanes_before(distance: usize) -> [u8; LANES] {
    let mut lanes = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        lanes[lane] = (LANES - distance + lane) as u8;
        lane += 1;
    }
    lanes
}
