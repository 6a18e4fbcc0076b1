//! Counters of a live memory: the memory of a running program that a policy manages.

/// Declare the counters once: the fields, their names, and all of them in order.
macro_rules! counters {
    ($($(#[doc = $what:literal])+ $name:ident,)*) => {
        /// What happened so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Counters {
            $($(#[doc = $what])+ pub $name: u64,)*
        }

        impl Counters {
            /// Their names and what they count, in order.
            pub const NAMES: &[(&str, &str)] =
                &[$((stringify!($name), concat!($($what),+))),*];

            /// The counters in order.
            pub fn numbers(&self) -> impl Iterator<Item = u64> {
                [$(self.$name),*].into_iter()
            }

            /// Add the counters of another memory.
            pub fn add(&mut self, other: &Self) {
                self.numbers_mut().zip(other.numbers()).for_each(|(sum, number)| *sum += number);
            }

            /// The counters in order.
            pub fn numbers_mut(&mut self) -> impl Iterator<Item = &mut u64> {
                [$(&mut self.$name),*].into_iter()
            }
        }
    };
}

counters! {
    /// Faults served, of every kind.
    faults,
    /// Pages touched for the first time.
    first_touches,
    /// Hint faults. A reference may cause several: under TPP, it faults again until its page is active.
    hint_faults,
    /// Faults on pages that were unmapped to emulate accessed bits.
    accessed_faults,
    /// Faults that mapped a far page without a promotion; the page enters the window.
    window_faults,
    /// Pages moved from the far tier to fast memory.
    promotions,
    /// Promoted pages that kept a shadow.
    shadow_copies,
    /// Copies of pages aborted because the program wrote the page meanwhile.
    aborts,
    /// Pages moved to the far tier by a copy.
    demotions_copied,
    /// Pages moved to the far tier by reuse of their shadow.
    demotions_remapped,
    /// First writes to pages with a shadow.
    shadow_faults,
    /// First writes to write-protected pages without a shadow.
    watch_faults,
    /// Shadows freed to make room.
    shadows_reclaimed,
    /// Pages released by the program.
    released,
    /// Failed attempts to unmap a page, which was pinned by I/O, a lock or a child.
    pinned,
    /// Forks whose child got a copy of all its pages.
    forks,
    /// Pages placed over the fast budget because no node had a free frame.
    over_budget,
    /// Pages loaded from the far tier.
    far_loads,
    /// Pages stored in the far tier.
    far_stores,
    /// Asynchronous reads from the far tier.
    fetches,
    /// Sum of the predicted durations of asynchronous reads, ns.
    fetches_predicted_ns,
    /// Sum of the durations of asynchronous reads, ns.
    fetches_ns,
    /// Faults whose thread slept until its page arrived.
    slept,
    /// Faults whose thread busy-waited until its page arrived.
    stalled,
}
