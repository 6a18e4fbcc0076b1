//! Size of the flash array, user capacity, and thresholds of garbage collection.

use nearfar_trace::{Error, Result};

use crate::machine::{Flash, Machine, OverProvisioning, VictimPolicy};

/// Counts of the array, checked by [`Geometry::new`].
///
/// Plane p is on die p mod dies, die d on channel d mod channels. Logical page n permanently belongs
/// to plane n mod planes (static allocation, as in MQSim): each plane is an independent small drive
/// with a fixed share of the user's pages.
///
/// The dies of a stripe work in lockstep and count as one die, with `stripe` times as many pages per
/// block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub channels: u32,
    /// Dies, on all channels.
    pub dies: u32,
    /// Planes, on all dies. A die executes one command at a time.
    pub planes: u32,
    /// Blocks of a plane.
    pub blocks: u32,
    /// Pages of a block, a multiple of `stripe`.
    pub pages: u32,
    /// Consecutive pages of a block that are programmed together.
    pub stripe: u32,
    pub page_bytes: u64,
    /// Logical pages: the user capacity, U in the definitions of over-provisioning.
    pub user_pages: u32,
    /// A plane that needs a new block collects if it has at most this many free blocks.
    pub gc_start: u32,
    /// Collection continues until this many blocks are free; if `None`, it stops after one block.
    pub gc_stop: Option<u32>,
    /// Selection of the block to collect.
    pub victim: VictimPolicy,
}

/// The mapping tables take 8 bytes per page; 2^28 pages are 1 TiB in pages of 4 KiB.
const MAX_PAGES: u64 = 1 << 28;

impl Geometry {
    /// The array of a machine.
    ///
    /// # Errors
    /// The machine has no `[flash]`, has too many pages for the tables, or has less spare space
    /// than the thresholds of collection require.
    pub fn new(machine: &Machine) -> Result<Self> {
        let flash = machine.flash.as_ref().ok_or_else(|| machine.lacks("[flash]"))?;
        let wrong = |key: &str, what: String, fix: &str| {
            Error::input(format!("machine {} key flash.{key}", machine.name), what, fix)
        };
        let counts = [
            flash.channels.value.0,
            flash.dies_per_channel.value.0,
            flash.planes_per_die.as_ref().map_or(1, |planes| planes.value.0),
            flash.blocks_per_plane.value.0,
            flash.pages_per_block.value.0,
        ];
        let total = counts.iter().try_fold(1u64, |product, count| product.checked_mul(*count));
        let Some(total) = total.filter(|total| *total <= MAX_PAGES) else {
            let what = format!(
                "channels, dies, planes, blocks and pages {counts:?} make more than {MAX_PAGES} pages"
            );
            return Err(wrong("blocks_per_plane", what, "describe a smaller array"));
        };
        let [channels, dies, planes, blocks, pages] = counts.map(|count| count as u32);
        let stripe = flash.dies_per_stripe();
        let fits = stripe > 0
            && u64::from(channels * dies).is_multiple_of(stripe)
            && (stripe.is_multiple_of(channels.into())
                || u64::from(channels).is_multiple_of(stripe));
        if !fits {
            let what = format!(
                "a stripe of {stripe} dies does not divide {channels} channels of {dies} dies each"
            );
            return Err(wrong("stripe", what, "write the number of dies, or leave it out"));
        }
        let stripe = stripe as u32;
        let page_bytes = flash.page_size.value.bytes();
        if !page_bytes.is_power_of_two() || !(512..=1 << 20).contains(&page_bytes) {
            let what = format!("is {page_bytes} bytes, not a power of two from 512 to 1 MiB");
            return Err(wrong("page_size", what, "write for example \"4KiB\""));
        }
        let share = |ratio: f64| (ratio * f64::from(blocks)).floor() as u32;
        let geometry = Self {
            channels: (channels / stripe).max(1),
            dies: channels * dies / stripe,
            planes: channels * dies * planes / stripe,
            blocks,
            pages: pages * stripe,
            stripe,
            page_bytes,
            user_pages: user_pages(total, flash),
            // Collection needs a free block to copy to.
            gc_start: share(flash.gc_start_free.value.0).max(1),
            gc_stop: flash.gc_stop_free.as_ref().map(|stop| share(stop.value.0).max(1)),
            victim: flash.gc_victim.unwrap_or_default(),
        };
        if geometry.user_pages == 0 {
            let what = "leaves no user capacity".into();
            return Err(wrong("over_provisioning", what, "lower it"));
        }
        geometry.check().map_err(|(key, what)| {
            wrong(key, what, "raise over_provisioning or lower the thresholds of collection")
        })?;
        Ok(geometry)
    }

    /// Check that collection always finds a block with an invalid page: the blocks of a plane that
    /// collection does not keep free must have more pages than the user can fill.
    ///
    /// # Errors
    /// Collection keeps too many blocks free. Returns the key at fault and a message.
    pub fn check(&self) -> std::result::Result<(), (&'static str, String)> {
        let keep = self.gc_start.max(self.gc_stop.unwrap_or(0));
        let filled = self.user_pages.div_ceil(self.planes);
        let room = u64::from(self.blocks.saturating_sub(keep)) * u64::from(self.pages);
        if room > u64::from(filled) {
            return Ok(());
        }
        let key = if keep == self.gc_start { "gc_start_free" } else { "gc_stop_free" };
        Err((
            key,
            format!(
                "keeps {keep} of {} blocks of a plane free, but the other blocks must hold more than the plane's {filled} user pages",
                self.blocks
            ),
        ))
    }

    /// Physical pages (T).
    pub fn total_pages(&self) -> u64 {
        u64::from(self.planes) * u64::from(self.blocks) * u64::from(self.pages)
    }

    /// User capacity in bytes.
    pub fn user_bytes(&self) -> u64 {
        u64::from(self.user_pages) * self.page_bytes
    }

    /// Plane of a logical page.
    pub fn plane_of(&self, page: u32) -> u32 {
        page % self.planes
    }

    /// Die of a plane.
    pub fn die_of(&self, plane: u32) -> u32 {
        plane % self.dies
    }
}

/// U for `total` = T: T (1 - op) if op = (T-U)/T, T / (1 + op) if op = (T-U)/U; rounded down.
fn user_pages(total: u64, flash: &Flash) -> u32 {
    let op = flash.over_provisioning.value.0;
    let user = match flash.over_provisioning_definition {
        OverProvisioning::OfTotal => total as f64 * (1.0 - op),
        OverProvisioning::OfUser => total as f64 / (1.0 + op),
    };
    // Negative if more than the total is spare.
    user.max(0.0) as u32
}
