//! Column chunks: how a row group is encoded and decoded.
