//! What vector registers the processor has, as tokens that only full detection gives. A leaf: it
//! depends on no other crate of nearfar.
