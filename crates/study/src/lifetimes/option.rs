//! The option that every study of pages has.

nearfar_schema::choices! {
    /// Whether pages end.
    pub enum Lifetimes: "answer" {
        /// the trace's events free pages; memory sizes are shares of the peak resident set
        On = "on",
        /// pages are never freed; memory sizes are shares of the footprint
        Off = "off",
    }
}
