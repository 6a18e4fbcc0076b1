//! Vector instructions beyond those that every processor of an architecture has.

/// Whether the processor has those that `avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt` names.
pub fn wide_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A function that is compiled twice, for any processor and for [`wide_registers`], and called as
/// the processor allows. For loops that compilers make wide, over many elements. Type parameters are
/// in brackets.
macro_rules! widened {
    (
        $(#[$attribute:meta])*
        fn $name:ident $([$($generic:tt)+])? ($($argument:ident: $type:ty),* $(,)?) -> $result:ty
        $body:block
    ) => {
        $(#[$attribute])*
        fn $name$(<$($generic)+>)?($($argument: $type),*) -> $result {
            #[inline(always)]
            fn in_any$(<$($generic)+>)?($($argument: $type),*) -> $result $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
            fn in_wide$(<$($generic)+>)?($($argument: $type),*) -> $result {
                in_any($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            if crate::wide::wide_registers() {
                // SAFETY: the processor has the instructions.
                return unsafe { in_wide($($argument),*) };
            }
            in_any($($argument),*)
        }
    };
}
pub(crate) use widened;
