//! The options and tables of the commands, for help, documentation and Python.

use nearfar_schema::command::Command;
use nearfar_schema::{Options, column};
use nearfar_trace::{export, generate, import};

use crate::filter::View;
use crate::{info, numa, paging, ssd, thp, tiering};

pub const COMMANDS: &[Command] = &[
    Command {
        name: "paging",
        options: paging::Request::specs,
        tables: &[("rows", column::to_json::<paging::Row>)],
    },
    Command {
        name: "thp",
        options: thp::Request::specs,
        tables: &[("rows", column::to_json::<thp::Row>), ("points", column::to_json::<thp::Point>)],
    },
    Command {
        name: "ssd",
        options: ssd::Request::specs,
        tables: &[("rows", column::to_json::<ssd::Cell>)],
    },
    Command {
        name: "numa alloc",
        options: numa::AllocRequest::specs,
        tables: &[
            ("rows", column::to_json::<numa::AllocRow>),
            ("landed", column::to_json::<numa::Landed>),
        ],
    },
    Command {
        name: "numa run",
        options: numa::RunRequest::specs,
        tables: &[
            ("rows", column::to_json::<numa::RunRow>),
            ("nodes", column::to_json::<numa::NodeUse>),
        ],
    },
    Command {
        name: "numa pair",
        options: numa::PairRequest::specs,
        tables: &[("rows", column::to_json::<numa::PairRow>)],
    },
    Command { name: "numa plan", options: numa::PlanRequest::specs, tables: &[] },
    Command {
        name: "tiering",
        options: tiering::options::Request::specs,
        tables: &[
            ("rows", column::to_json::<tiering::Row>),
            ("series", column::to_json::<tiering::Point>),
        ],
    },
    Command { name: "generate", options: generate::Request::specs, tables: &[] },
    Command { name: "import", options: import::Request::specs, tables: &[] },
    Command {
        name: "export",
        options: || [export::Request::specs(), View::specs()].concat(),
        tables: &[],
    },
    Command {
        name: "info",
        options: || [info::Request::specs(), View::specs()].concat(),
        tables: &[
            ("working-set", column::to_json::<info::WorkingSet>),
            ("regions", column::to_json::<info::Region>),
            ("hot", column::to_json::<info::HotPart>),
            ("reuse", column::to_json::<info::ReuseBin>),
        ],
    },
    Command { name: "explain", options: paging::explain::Request::specs, tables: &[] },
];
