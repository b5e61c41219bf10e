//! Tests of the view against files built by hand.
