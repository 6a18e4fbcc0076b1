//! Fair shares of the fast node: pages of a tenant (a container, a virtual machine or a program) that is
//! above its share are demoted first and promoted last.
//!
//! Follows the idea of Equilibria (arXiv 2602.08800). A share is a guarantee ([`Limit::low`]), not a
//! bound: a tenant may use frames that others do not use. While a tenant is above its share, most
//! policies promote its pages only if additional memory stays free for other tenants.
//!
//! [`Limit::low`]: super::Limit::low

use super::{Memory, NodeId, Page, Tenant};

fn above(mem: &dyn Memory, tenant: Tenant) -> bool {
    let share = mem.limit(tenant, NodeId::FAST).low;
    share > 0 && mem.used(tenant, NodeId::FAST) > share
}

/// Whether the page's tenant has a share of the fast node and uses more than that.
pub fn is_above(mem: &dyn Memory, page: Page) -> bool {
    mem.tenants() > 1 && above(mem, mem.tenant_of(page))
}

/// Whether a page may be demoted. A page in the fast node may not if its own tenant is within its share
/// while another is above.
pub fn may_demote(mem: &dyn Memory, page: Page) -> bool {
    mem.tenants() == 1
        || mem.node_of(page) != NodeId::FAST
        || above(mem, mem.tenant_of(page))
        || !(0..mem.tenants()).any(|tenant| above(mem, Tenant::new(tenant)))
}
