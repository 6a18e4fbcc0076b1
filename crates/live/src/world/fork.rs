//! `fork`: copies to the child the pages that the kernel did not copy, because they were parked or stored.

use nearfar_kernel::tiering::Page;

use super::page_table::Location;
use super::{Backing, World};
use crate::children::Moves;
use crate::{Child, Event, Fail, Kernel, Va};

impl<K: Kernel> World<K> {
    /// Copy to a child the pages that were not in the program's memory. `moves` has the child's changes to
    /// its mappings. `later` has the program's changes that were reported after the fork but may precede it.
    /// Adds the child's own children to `children`. Returns the pages that are not mapped in the child
    /// although no message explains it.
    pub(crate) fn copy_all_to_child(
        &mut self,
        child: Child,
        mut moves: Moves,
        later: &Moves,
        children: &mut Vec<(Child, Moves)>,
    ) -> Vec<Va> {
        let mut lacking = Vec::new();
        let mut next = self.next_mapped_page(Page::new(0));
        while let Some(page) = next {
            next = self.next_mapped_page(page.skip(1));
            let backing = match (self.pages.state(page).location(), self.pages.slot(page)) {
                (Some(Location::Parked), _) => Backing::Parked(self.pages.frame(page)),
                (Some(Location::Stored), Some(slot)) => Backing::Stored(slot),
                _ => continue,
            };
            let at = self.numbers.address_of(page);
            if !self.copy_to_child(child, (at, backing), &mut moves, later, children) {
                lacking.push(at);
            }
        }
        let unnumbered: Vec<_> = self.unnumbered.iter().map(|(at, from)| (*at, *from)).collect();
        for page in unnumbered {
            if !self.copy_to_child(child, page, &mut moves, later, children) {
                lacking.push(page.0);
            }
        }
        lacking
    }

    /// Copy one page to a child. Returns false if it is not mapped there and no message explains it.
    fn copy_to_child(
        &mut self,
        child: Child,
        (at, backing): (Va, Backing),
        moves: &mut Moves,
        later: &Moves,
        children: &mut Vec<(Child, Moves)>,
    ) -> bool {
        self.kernel.beat();
        if self.read(backing).is_err() {
            // The far tier has failed, so the run ends.
            return true;
        }
        let (mut events, mut origin) = (Vec::new(), at);
        while let Some(at) = moves.current(origin) {
            match self.kernel.copy_to_child(child, at, &self.buffer) {
                // `Exists`: the child has mapped the page anew.
                Ok(()) | Err(Fail::Exists | Fail::Ended) => return true,
                Err(Fail::Missing) => match later.current(origin) {
                    Some(moved) if moved != origin => origin = moved,
                    current => return current.is_none(),
                },
                Err(Fail::Again) => {
                    self.kernel.child_events(child, &mut events);
                    for event in events.drain(..) {
                        match event {
                            Event::Forked(grandchild) => children.push((grandchild, moves.clone())),
                            event => moves.note(event),
                        }
                    }
                }
                Err(fail) => {
                    self.refused(fail, "copying to a child", at);
                    self.break_down("a child's memory could not be copied".into());
                    return true;
                }
            }
        }
        true
    }
}
