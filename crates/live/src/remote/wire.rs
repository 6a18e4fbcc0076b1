//! The encoding of values in messages between the program and the launcher: little-endian numbers, one
//! after the other. There is no version, because both ends are of the same build.

use nearfar_kernel::tiering::layered::{Declared, Hooks};
use nearfar_kernel::tiering::{
    Commit, Context, DropReason, Limit, Next, NodeId, Page, Refused, Request, Tenant, Time,
};

/// The unread part of a message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

/// A value in a message.
pub(super) trait Wire: Sized {
    /// Append the value.
    fn put(&self, into: &mut Vec<u8>);
    /// Read a value; `None` if the bytes are invalid.
    fn take(from: &mut Reader<'_>) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Wire for $type {
            fn put(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut Reader<'_>) -> Option<Self> {
                from.bytes().map(Self::from_le_bytes)
            }
        })*
    };
}

numbers!(u8, u16, u32, u64);

/// Types that are encoded as another type.
macro_rules! written_as {
    ($($type:ty: $encoded:ty, $to:expr, $from:expr;)*) => {
        $(impl Wire for $type {
            fn put(&self, into: &mut Vec<u8>) {
                let to: fn(&$type) -> $encoded = $to;
                to(self).put(into);
            }
            fn take(from: &mut Reader<'_>) -> Option<Self> {
                let of: fn($encoded) -> Option<$type> = $from;
                of(<$encoded>::take(from)?)
            }
        })*
    };
}

written_as! {
    bool: u8, |on| u8::from(*on), |on| Some(on != 0);
    Page: u32, |page| page.number(), |number| Some(Page::new(number));
    NodeId: u8, |node| node.index() as u8, |number| Some(NodeId::new(number));
    Tenant: u16, |tenant| tenant.index() as u16, |number| Some(Tenant::new(number));
    Time: u64, |time| time.ps(), |ps| Some(Time::from_ps(ps));
    Hooks: u16, |hooks| hooks.bits(), |bits| Some(Hooks::of_bits(bits));
    String: Vec<u8>, |text| text.as_bytes().to_vec(), |bytes| String::from_utf8(bytes).ok();
}

/// Enums without fields, encoded as an index in their list of variants.
macro_rules! plain {
    ($($type:ty: $($variant:path),*;)*) => {
        $(impl Wire for $type {
            fn put(&self, into: &mut Vec<u8>) {
                // The list has every variant, so the default is unused.
                let index = [$($variant),*].iter().position(|variant| variant == self);
                (index.unwrap_or(0) as u8).put(into);
            }
            fn take(from: &mut Reader<'_>) -> Option<Self> {
                [$($variant),*].get(usize::from(u8::take(from)?)).copied()
            }
        })*
    };
}

plain! {
    Refused: Refused::NoFrame, Refused::Busy, Refused::Pinned, Refused::State;
    Commit: Commit::Done, Commit::Dirtied, Commit::Pinned;
    DropReason: DropReason::Written, DropReason::Reclaimed;
    Context: Context::Kernel, Context::Program;
}

/// Structs, encoded field by field.
macro_rules! fields {
    ($($type:ty { $($field:ident),* })*) => {
        $(impl Wire for $type {
            fn put(&self, into: &mut Vec<u8>) {
                $(self.$field.put(into);)*
            }
            fn take(from: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: Wire::take(from)?),* })
            }
        })*
    };
}
pub(super) use fields;

fields! {
    Limit { low, max }
    Declared { base, hooks, watch_unshadowed }
}

impl Wire for () {
    fn put(&self, _: &mut Vec<u8>) {}
    fn take(_: &mut Reader<'_>) -> Option<Self> {
        Some(())
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, into: &mut Vec<u8>) {
        self.is_some().put(into);
        if let Some(value) = self {
            value.put(into);
        }
    }
    fn take(from: &mut Reader<'_>) -> Option<Self> {
        Some(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, into: &mut Vec<u8>) {
        self.is_ok().put(into);
        match self {
            Ok(value) => value.put(into),
            Err(error) => error.put(into),
        }
    }
    fn take(from: &mut Reader<'_>) -> Option<Self> {
        Some(if bool::take(from)? { Ok(T::take(from)?) } else { Err(E::take(from)?) })
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, into: &mut Vec<u8>) {
        self.0.put(into);
        self.1.put(into);
    }
    fn take(from: &mut Reader<'_>) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, into: &mut Vec<u8>) {
        (self.len() as u32).put(into);
        self.iter().for_each(|item| item.put(into));
    }
    fn take(from: &mut Reader<'_>) -> Option<Self> {
        let count = u32::take(from)?;
        (0..count).map(|_| T::take(from)).collect()
    }
}

impl<T: Wire, const N: usize> Wire for [T; N] {
    fn put(&self, into: &mut Vec<u8>) {
        self.iter().for_each(|item| item.put(into));
    }
    fn take(from: &mut Reader<'_>) -> Option<Self> {
        let items: Option<Vec<T>> = (0..N).map(|_| T::take(from)).collect();
        items?.try_into().ok()
    }
}

impl Wire for Next {
    fn put(&self, into: &mut Vec<u8>) {
        match self {
            Next::Again => 0u8.put(into),
            Next::Idle => 1u8.put(into),
            Next::At(time) => (2u8, *time).put(into),
        }
    }
    fn take(from: &mut Reader<'_>) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(Next::Again),
            1 => Some(Next::Idle),
            2 => Time::take(from).map(Next::At),
            _ => None,
        }
    }
}

impl Wire for Request {
    fn put(&self, into: &mut Vec<u8>) {
        match *self {
            Request::ArmHint(page) => (0u8, page).put(into),
            Request::WriteProtect(page) => (1u8, page).put(into),
            Request::Move(page, to) => (2u8, (page, to)).put(into),
            Request::RemapToShadow(page) => (3u8, page).put(into),
            Request::DropShadow(page, why) => (4u8, (page, why)).put(into),
        }
    }
    fn take(from: &mut Reader<'_>) -> Option<Self> {
        let (kind, page) = <(u8, Page)>::take(from)?;
        match kind {
            0 => Some(Request::ArmHint(page)),
            1 => Some(Request::WriteProtect(page)),
            2 => NodeId::take(from).map(|to| Request::Move(page, to)),
            3 => Some(Request::RemapToShadow(page)),
            4 => DropReason::take(from).map(|why| Request::DropShadow(page, why)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn check_round_trip<T: Wire + PartialEq + Debug>(values: &[T]) {
        for value in values {
            let mut bytes = Vec::new();
            value.put(&mut bytes);
            let mut reader = Reader(&bytes);
            assert_eq!(T::take(&mut reader).as_ref(), Some(value));
            assert!(reader.0.is_empty(), "{value:?} leaves something");
            // Truncated bytes are invalid.
            for length in 0..bytes.len() {
                assert_eq!(T::take(&mut Reader(&bytes[..length])), None, "{value:?}");
            }
        }
    }

    #[test]
    fn values_are_read_as_written() {
        let (page, time) = (Page::new(0xabcd_ef01), Time::from_ps(1 << 60));
        check_round_trip(&[true, false]);
        check_round_trip(&[Refused::NoFrame, Refused::Busy, Refused::Pinned, Refused::State]);
        check_round_trip(&[Commit::Done, Commit::Dirtied, Commit::Pinned]);
        check_round_trip(&[Next::Again, Next::Idle, Next::At(time), Next::At(Time::NEVER)]);
        check_round_trip(&[
            Request::ArmHint(page),
            Request::WriteProtect(page),
            Request::Move(page, NodeId::new(3)),
            Request::RemapToShadow(page),
            Request::DropShadow(page, DropReason::Written),
            Request::DropShadow(page, DropReason::Reclaimed),
        ]);
        check_round_trip(&[Ok(vec![(7u8, time)]), Err("why".to_owned())]);
        check_round_trip(&[Declared {
            base: Some("nomad".into()),
            hooks: Hooks::RULE,
            watch_unshadowed: true,
        }]);
        check_round_trip(&[[Some(Tenant::new(500)), None]]);
        check_round_trip(&[(Context::Program, Limit { low: 1, max: u64::MAX })]);
    }
}
