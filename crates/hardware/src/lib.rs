//! What the hardware does: translation and timing. No policy in here.

pub mod tlb;
