//! Latency of requests to a device, one at a time.

use std::io;
use std::os::fd::RawFd;
use std::time::Instant;

use nearfar_trace::{Error, Result};

use crate::bandwidth::Access;
use crate::chase::Random;
use crate::mapping::{Mapping, Pages};

/// Nanoseconds of each of `count` requests of `bytes`, at random multiples of `bytes` in the first
/// `span` bytes of an open file. Open it with `O_DIRECT` to bypass the page cache.
///
/// # Errors
/// The span is smaller than a request, or a request fails or is incomplete.
pub fn request_times(
    file: RawFd,
    access: Access,
    bytes: usize,
    span: u64,
    count: usize,
) -> Result<Vec<f64>> {
    let failed = |what: String| Error::input("storage", what, "choose another path with --storage");
    let slots = span / bytes.max(1) as u64;
    if slots == 0 || bytes == 0 {
        return Err(failed(format!("{span} bytes hold no request of {bytes} bytes")));
    }
    let mut memory = Mapping::new(bytes, Pages::Small, None)?;
    let mut random = Random(bytes as u64);
    // Write varying data: a device may optimise pages of zeros.
    memory.fill();
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let offset = (random.below(slots) * bytes as u64) as libc::off_t;
        let began = Instant::now();
        // SAFETY: the memory is ours and has `bytes` bytes.
        let done = unsafe {
            let start = memory.words_mut().as_mut_ptr().cast::<libc::c_void>();
            match access {
                Access::Read => libc::pread(file, start, bytes, offset),
                Access::Write => libc::pwrite(file, start, bytes, offset),
            }
        };
        let time = began.elapsed().as_nanos() as f64;
        match usize::try_from(done) {
            Ok(done) if done == bytes => times.push(time),
            Ok(done) => return Err(failed(format!("a request of {bytes} bytes moved {done}"))),
            Err(_) => return Err(failed(format!("{bytes} bytes: {}", io::Error::last_os_error()))),
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn requests_have_times_and_a_short_file_is_an_error() {
        let path = std::env::temp_dir().join(format!("nearfar-device-{}", std::process::id()));
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        std::fs::remove_file(&path).unwrap();
        let file = file.unwrap();
        let times = |access, bytes, span| request_times(file.as_raw_fd(), access, bytes, span, 4);
        assert!(times(Access::Read, 4096, 65536).unwrap_err().to_string().contains("moved 0"));
        assert_eq!(times(Access::Write, 65536, 65536).unwrap().len(), 4);
        assert_eq!(times(Access::Read, 4096, 65536).unwrap().len(), 4);
        assert!(times(Access::Read, 4096, 4095).is_err());
        assert!(request_times(-1, Access::Read, 4096, 65536, 1).is_err());
    }
}
