//! Fair shares of the fast node: a tenant above its share is demoted first and promoted last.
//!
//! Follows the idea of Equilibria (arXiv 2602.08800). A share is a guarantee ([`Limit::low`]), not a
//! bound: a tenant may use what others leave. While a tenant is above its share, its promotions leave half
//! of what the policy keeps free to others.
//!
//! [`Limit::low`]: super::Limit::low

use super::{Memory, NodeId, Page, Tenant};

fn above(mem: &dyn Memory, tenant: Tenant) -> bool {
    let share = mem.limit(tenant, NodeId::FAST).low;
    share > 0 && mem.used(tenant, NodeId::FAST) > share
}

/// Whether the page's tenant has a share of the fast node and uses more: its promotions come last.
pub fn is_above(mem: &dyn Memory, page: Page) -> bool {
    mem.tenants() > 1 && above(mem, mem.tenant_of(page))
}

/// Whether a page may be demoted: not from the fast node for a tenant that is above its share while its
/// own tenant is not.
pub fn may_demote(mem: &dyn Memory, page: Page) -> bool {
    mem.tenants() == 1
        || mem.node_of(page) != NodeId::FAST
        || above(mem, mem.tenant_of(page))
        || !(0..mem.tenants()).any(|tenant| above(mem, Tenant::new(tenant)))
}
