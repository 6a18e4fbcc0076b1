fn main() {
    let a: Vec<String> = std::env::args().collect();
    if a[1] == "raw" {
        use nearfar_trace::*;
        let raw = std::fs::read(&a[2]).unwrap();
        let o =
            WriterOptions { overwrite: true, threads: a[4].parse().unwrap(), ..Default::default() };
        let t = std::time::Instant::now();
        let mut w = Writer::create(std::path::Path::new(&a[3]), Source::default(), o).unwrap();
        let (mut nin, mut last) = (0u32, 0u32);
        for c in raw.chunks_exact(16) {
            let x = u64::from_le_bytes(c[..8].try_into().unwrap());
            let y = u64::from_le_bytes(c[8..].try_into().unwrap());
            let r = if y >> 63 == 1 {
                let r = Record {
                    addr: x,
                    kind: Kind::Fetch,
                    size: (y >> 16) as u16,
                    thread: 0,
                    instr: nin - last,
                };
                last = 0;
                nin = y as u32 & 0xffff;
                r
            } else {
                let info = (y >> 32) as u32;
                let i = y as u32 & 0xffff;
                let r = Record {
                    addr: x,
                    kind: if info >> 17 & 1 == 1 { Kind::Store } else { Kind::Load },
                    size: 1 << (info & 7),
                    thread: 0,
                    instr: i - last,
                };
                last = i;
                r
            };
            w.push(r).unwrap();
        }
        let i = w.finish(None).unwrap();
        let n = i.records as f64;
        let b: u64 = i.parts.iter().map(|p| p.bytes).sum();
        println!(
            "{} records {:.3} B/ref, {:.2} ns/ref {:?}",
            n,
            b as f64 / n,
            t.elapsed().as_secs_f64() * 1e9 / n,
            i.records_by_kind
        );
    } else if a[1] == "study" {
        use nearfar_study::paging::*;
        let r = nearfar_trace::Reader::open(std::path::Path::new(&a[2])).unwrap();
        let mut o = Options::new(
            (9..22).map(|s| 1 << s).collect(),
            (1..=10).map(|i| MemorySize::Fraction(i as f64 / 10.)).collect(),
            "64",
            &a[3],
            ClockInsert::Set,
            nearfar_trace::KindSet::ALL,
        )
        .unwrap();
        o.threads = a[4].parse().unwrap();
        let t = std::time::Instant::now();
        let s = simulate(&r, &o, &mut |_| Ok(())).unwrap();
        println!("{:.2} ns/ref total", t.elapsed().as_secs_f64() * 1e9 / s.records as f64);
        if a.len() > 5 {
            for c in &s.cells {
                println!("{c:?}");
            }
        }
    } else if a[1] == "window" {
        use nearfar_study::paging::window::*;
        let r = nearfar_trace::Reader::open(std::path::Path::new(&a[2])).unwrap();
        let mut b = nearfar_trace::Batch::default();
        let mut s = r.batches(nearfar_trace::Columns::PAGING);
        let mut w = Windower::new(9, a[3].parse().unwrap(), nearfar_trace::KindSet::ALL);
        let mut c = Chunk::default();
        let (mut n, mut win, mut blocks, mut refs) = (0u64, 0, 0, 0);
        let t = std::time::Instant::now();
        loop {
            w.begin(&mut c);
            let mut more = true;
            for _ in 0..64 {
                more = s.next_into(&mut b).unwrap();
                if !more {
                    break;
                }
                w.add(&b, &mut c);
            }
            w.end(&mut c);
            n += c.records;
            win += c.starts.len() - 1;
            blocks += c.block.len();
            refs += c.refs.len();
            if !more {
                break;
            }
        }
        println!(
            "{:.2} ns/ref; {win} windows, {:.1} records a window, {:.1} blocks, refs {:.3} of records",
            t.elapsed().as_secs_f64() * 1e9 / n as f64,
            n as f64 / win as f64,
            blocks as f64 / win as f64,
            refs as f64 / n as f64
        );
    } else if a[1] == "decode" {
        use nearfar_trace::*;
        let r = Reader::open(std::path::Path::new(&a[2])).unwrap();
        for c in [Columns::ALL, Columns::PAGING, Columns::ALL, Columns::PAGING] {
            let t = std::time::Instant::now();
            let mut b = Batch::default();
            let mut s = r.batches(c);
            let mut n = 0;
            while s.next_into(&mut b).unwrap() {
                n += b.len();
            }
            println!("{:?} {:.2} ns/ref", c, t.elapsed().as_secs_f64() * 1e9 / n as f64);
        }
    }
}
