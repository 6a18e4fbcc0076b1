//! Symbols of ELF files: from symbol tables, DWARF, and the function starts in unwind tables.

use std::path::Path;
use std::rc::Rc;

use addr2line::Context;
use gimli::{BaseAddresses, CieOrFde, EndianRcSlice, RunTimeEndian, SectionId, UnwindSection};
use nearfar_trace::{Result, file};
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::Symbol;

type Data = EndianRcSlice<RunTimeEndian>;
type File<'a> = object::File<'a, &'a ReadCache<std::fs::File>>;

/// The GNU build id of an ELF file in hexadecimal digits; `None` if it has none or is not ELF.
///
/// # Errors
/// The file cannot be opened.
pub fn build_id(path: &Path) -> Result<Option<String>> {
    let cache = ReadCache::new(file::open(path)?);
    let id = File::parse(&cache).ok().and_then(|elf| {
        let id = elf.build_id().ok()??;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    });
    Ok(id)
}

/// The symbols at offsets of the ELF file `image`. Its debug information may be in the file `debug`.
///
/// # Errors
/// A file cannot be opened.
pub fn symbols_at(image: &Path, debug: Option<&Path>, offsets: &[u64]) -> Result<Vec<Symbol>> {
    let image_cache = ReadCache::new(file::open(image)?);
    let debug_cache = debug.map(|path| Ok(ReadCache::new(file::open(path)?))).transpose()?;
    let Ok(image) = File::parse(&image_cache) else {
        return Ok(vec![Symbol::default(); offsets.len()]);
    };
    let debug = debug_cache.as_ref().and_then(|cache| File::parse(cache).ok());
    let lines = debug.as_ref().and_then(lines).or_else(|| lines(&image));
    let named = Functions::new(debug.iter().chain([&image]).flat_map(symbol_table).collect());
    let unnamed = Functions::new(unwound(&image).unwrap_or_default());
    let symbol = |&offset: &u64| {
        let Some(addr) = address(&image, offset) else { return Symbol::default() };
        let mut symbol =
            lines.as_ref().and_then(|lines| from_lines(lines, addr)).unwrap_or_default();
        if let Some((_, name)) = named.find(addr) {
            symbol.function.get_or_insert_with(|| name.clone());
        }
        if symbol.function.is_none() {
            symbol.start = unnamed.find(addr).map(|(start, _)| start);
        }
        symbol
    };
    Ok(offsets.iter().map(symbol).collect())
}

/// The virtual address of an offset in the file.
fn address(image: &File<'_>, offset: u64) -> Option<u64> {
    image.segments().find_map(|segment| {
        let (start, bytes) = segment.file_range();
        let within = offset.checked_sub(start).filter(|within| *within < bytes)?;
        segment.address().checked_add(within)
    })
}

/// Functions: start, bytes, symbol.
struct Functions<T>(Vec<(u64, u64, T)>);

impl<T> Functions<T> {
    fn new(mut functions: Vec<(u64, u64, T)>) -> Self {
        functions.sort_by_key(|(start, size, _)| (*start, *size));
        Self(functions)
    }

    /// The function that contains an address. A function without a size ends where the next begins.
    fn find(&self, addr: u64) -> Option<(u64, &T)> {
        let after = self.0.partition_point(|(start, ..)| *start <= addr);
        let last = self.0[..after].last()?.0;
        // Of several with the same start, the shortest one that contains the address.
        let first = self.0.partition_point(|(start, ..)| *start < last);
        let mut candidates = self.0[first..after].iter();
        let (start, _, symbol) =
            candidates.find(|(_, size, _)| *size == 0 || addr - last < *size)?;
        Some((*start, symbol))
    }
}

/// Functions of the symbol tables.
fn symbol_table(elf: &File<'_>) -> Vec<(u64, u64, String)> {
    let all = elf.symbols().chain(elf.dynamic_symbols());
    all.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| {
            let name = addr2line::demangle_auto(symbol.name().ok()?.into(), None);
            Some((symbol.address(), symbol.size(), name.into_owned()))
        })
        .collect()
}

fn endian(elf: &File<'_>) -> RunTimeEndian {
    if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

/// Functions of the unwind tables, without names. Stripped files have these, too.
fn unwound(elf: &File<'_>) -> Option<Vec<(u64, u64, ())>> {
    let section = elf.section_by_name(".eh_frame")?;
    let data = section.uncompressed_data().ok()?;
    let mut frames = gimli::EhFrame::new(&data, endian(elf));
    frames.set_address_size(if elf.is_64() { 8 } else { 4 });
    let text = elf.section_by_name(".text").map_or(0, |text| text.address());
    let bases = BaseAddresses::default().set_eh_frame(section.address()).set_text(text);
    let mut entries = frames.entries(&bases);
    let mut functions = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Fde(partial) = entry
            && let Ok(entry) = partial.parse(|_, bases, at| frames.cie_from_offset(bases, at))
        {
            functions.push((entry.initial_address(), entry.len(), ()));
        }
    }
    Some(functions)
}

/// The debug information of a file, if it has any.
fn lines(elf: &File<'_>) -> Option<Context<Data>> {
    let load = |id: SectionId| -> std::result::Result<Data, gimli::Error> {
        let section = elf.section_by_name(id.name());
        let data = section.and_then(|section| section.uncompressed_data().ok());
        Ok(Data::new(Rc::from(data.as_deref().unwrap_or_default()), endian(elf)))
    };
    elf.section_by_name(".debug_info")?;
    Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}

/// The symbol at an address, from debug information.
fn from_lines(lines: &Context<Data>, addr: u64) -> Option<Symbol> {
    let mut symbol = Symbol::default();
    let mut frames = lines.find_frames(addr).skip_all_loads().ok()?;
    // From the innermost inlined function outwards: the first place and the last name stay.
    while let Ok(Some(frame)) = frames.next() {
        if let (None, Some(place)) = (&symbol.file, &frame.location) {
            (symbol.file, symbol.line) = (place.file.map(str::to_owned), place.line);
        }
        if let Some(name) = frame.function.as_ref().and_then(|name| name.demangle().ok()) {
            symbol.function = Some(name.into_owned());
        }
    }
    Some(symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_other_than_elf_have_no_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        for bytes in [&b"no program"[..], b"\x7fELF\x02\x01\x01", b""] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(build_id(&path).unwrap(), None);
            assert_eq!(
                symbols_at(&path, Some(&path), &[0, u64::MAX]).unwrap(),
                vec![Symbol::default(); 2]
            );
        }
        assert!(build_id(&folder.path().join("none")).is_err());
    }

    #[inline(never)]
    fn that_has_a_name(given: u64) -> u64 {
        std::hint::black_box(given) * 3
    }

    #[test]
    fn a_program_names_its_functions() {
        assert_eq!(that_has_a_name(2), 6);
        let own = std::env::current_exe().unwrap();
        let cache = ReadCache::new(file::open(&own).unwrap());
        let elf = File::parse(&cache).unwrap();
        let wanted = "that_has_a_name";
        let symbol = elf
            .symbols()
            .find(|symbol| symbol.name().is_ok_and(|name| name.contains(wanted)))
            .unwrap();
        let offset = |addr: u64| {
            let of = |segment: object::Segment<'_, '_, _>| {
                let within = addr.checked_sub(segment.address())?;
                (within < segment.file_range().1).then(|| segment.file_range().0 + within)
            };
            elf.segments().find_map(of).unwrap()
        };
        let (start, end) = (symbol.address(), symbol.address() + symbol.size());
        let places = [offset(start), offset(end - 1), offset(end + (1 << 20)), u64::MAX];
        let names = symbols_at(&own, None, &places).unwrap();
        for name in &names[..2] {
            assert!(name.function.as_ref().unwrap().contains(wanted), "{name:?}");
        }
        assert_ne!(names[2], names[0]);
        assert_eq!(names[3], Symbol::default());
        let functions = unwound(&elf).unwrap();
        assert!(functions.contains(&(start, end - start, ())));
    }

    #[test]
    fn functions_are_found_within_their_bounds() {
        let all = Functions::new(vec![(10, 5, 'a'), (20, 0, 'b'), (30, 9, 'd'), (30, 2, 'c')]);
        let found =
            [9, 10, 14, 15, 20, 29, 30, 32, 39].map(|at| all.find(at).map(|(_, &what)| what));
        let expected =
            [None, Some('a'), Some('a'), None, Some('b'), Some('b'), Some('c'), Some('d'), None];
        assert_eq!(found, expected);
    }
}
