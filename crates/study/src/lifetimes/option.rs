//! The option that every study of pages has.

nearfar_schema::choices! {
    /// Whether pages end.
    pub enum Lifetimes: "answer" {
        /// pages end as the trace's events say, and memory sizes are parts of the peak resident set
        On = "on",
        /// a page, once touched, lives for ever, and memory sizes are parts of the footprint
        Off = "off",
    }
}
