use nearfar_live::{setup::Setup, supervise};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mb: u64 = args[1].parse().unwrap();
    let setup = Setup {
        fast: mb << 20,
        far_size: 4 << 30,
        far: args[2].clone(),
        policy: args[3].clone(),
        scale: 1.0,
        ..Default::default()
    };
    let lib = std::path::Path::new(&args[4]).canonicalize().unwrap();
    let s = supervise::run(&setup, &lib, &args[5..], |_| {}).unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(2)
    });
    eprintln!("{s:#?}");
}
