//! Kernels for x86-64's vector extensions.

/// Methods of a vector trait that are an instruction or a few each.
macro_rules! instructions {
    ($($name:ident($($x:ident: $ty:ty),*) -> $out:ty = $instruction:expr;)*) => {$(
        #[inline(always)]
        fn $name($($x: $ty),*) -> $out {
            // SAFETY: instances run only where the features were detected.
            unsafe { $instruction }
        }
    )*};
    ($(unsafe $name:ident($($x:ident: $ty:ty),*) $(-> $out:ty)? = $instruction:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($x: $ty),*) $(-> $out)? {
            // SAFETY: by the caller; the features were detected before an instance was taken.
            unsafe { $instruction }
        }
    )*};
}

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod backward;
pub(crate) mod float_rows;
pub(crate) mod fma3;
pub(crate) mod frame;
pub(crate) mod probe;
mod scales;
pub(crate) mod score_scan;
