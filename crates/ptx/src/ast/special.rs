//! Special registers.

use std::fmt;

/// A component of a special register that is a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Axis {
    X,
    Y,
    Z,
    W,
}

impl Axis {
    fn name(self) -> char {
        match self {
            Self::X => 'x',
            Self::Y => 'y',
            Self::Z => 'z',
            Self::W => 'w',
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "x" => Some(Self::X),
            "y" => Some(Self::Y),
            "z" => Some(Self::Z),
            "w" => Some(Self::W),
            _ => None,
        }
    }
}

macro_rules! special_registers {
    (vectors: $($vector:ident $vector_text:literal)*; scalars: $($scalar:ident $text:literal)*) => {
        /// A predefined, read-only register (PTX ISA, "Special Registers").
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum SpecialRegister {
            $($vector(Axis),)*
            $($scalar,)*
            /// `%envreg0` to `%envreg31`.
            EnvReg(u8),
            /// `%pm0` to `%pm7`.
            Pm(u8),
            /// `%pm0_64` to `%pm7_64`.
            Pm64(u8),
            /// `%reserved_smem_offset_0` and `_1`.
            ReservedSmemOffset(u8),
        }

        impl SpecialRegister {
            /// The register with that spelling, e.g. `%tid.x` or `%laneid`.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => return Some(Self::$scalar),)*
                    _ => {}
                }
                if let Some((base, axis)) = name.split_once('.') {
                    let axis = Axis::from_name(axis)?;
                    return match base {
                        $($vector_text => Some(Self::$vector(axis)),)*
                        _ => None,
                    };
                }
                Self::numbered(name)
            }

            /// Whether `name` is a special register that has components, e.g. `%tid`.
            pub fn is_vector(name: &str) -> bool {
                matches!(name, $($vector_text)|*)
            }
        }

        impl fmt::Display for SpecialRegister {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$vector(axis) => write!(f, "{}.{}", $vector_text, axis.name()),)*
                    $(Self::$scalar => f.write_str($text),)*
                    Self::EnvReg(n) => write!(f, "%envreg{n}"),
                    Self::Pm(n) => write!(f, "%pm{n}"),
                    Self::Pm64(n) => write!(f, "%pm{n}_64"),
                    Self::ReservedSmemOffset(n) => write!(f, "%reserved_smem_offset_{n}"),
                }
            }
        }
    };
}

special_registers! {
    vectors:
        Tid "%tid"  Ntid "%ntid"  Ctaid "%ctaid"  Nctaid "%nctaid"
        ClusterId "%clusterid"  NclusterId "%nclusterid"
        ClusterCtaid "%cluster_ctaid"  ClusterNctaid "%cluster_nctaid";
    scalars:
        LaneId "%laneid"  WarpId "%warpid"  NwarpId "%nwarpid"  SmId "%smid"  NsmId "%nsmid"  GridId "%gridid"
        IsExplicitCluster "%is_explicit_cluster"
        ClusterCtaRank "%cluster_ctarank"  ClusterNctaRank "%cluster_nctarank"
        LaneMaskEq "%lanemask_eq"  LaneMaskLe "%lanemask_le"  LaneMaskLt "%lanemask_lt"
        LaneMaskGe "%lanemask_ge"  LaneMaskGt "%lanemask_gt"
        Clock "%clock"  ClockHi "%clock_hi"  Clock64 "%clock64"
        GlobalTimer "%globaltimer"  GlobalTimerLo "%globaltimer_lo"  GlobalTimerHi "%globaltimer_hi"
        ReservedSmemOffsetBegin "%reserved_smem_offset_begin"
        ReservedSmemOffsetEnd "%reserved_smem_offset_end"
        ReservedSmemOffsetCap "%reserved_smem_offset_cap"
        TotalSmemSize "%total_smem_size"  AggrSmemSize "%aggr_smem_size"  DynamicSmemSize "%dynamic_smem_size"
        CurrentGraphExec "%current_graph_exec"
}

impl SpecialRegister {
    fn numbered(name: &str) -> Option<Self> {
        // Only the canonical spelling of a number, so that printing gives back what was parsed.
        let number =
            |text: &str, limit: u8| text.parse::<u8>().ok().filter(|n| *n < limit && n.to_string() == text);
        if let Some(n) = name.strip_prefix("%envreg") {
            return number(n, 32).map(Self::EnvReg);
        }
        if let Some(n) = name.strip_prefix("%reserved_smem_offset_") {
            return number(n, 2).map(Self::ReservedSmemOffset);
        }
        let n = name.strip_prefix("%pm")?;
        match n.strip_suffix("_64") {
            Some(n) => number(n, 8).map(Self::Pm64),
            None => number(n, 8).map(Self::Pm),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["%tid.x", "%nctaid.z", "%cluster_ctaid.y", "%laneid", "%envreg31", "%pm7", "%pm0_64"] {
            assert_eq!(SpecialRegister::from_name(name).map(|s| s.to_string()).as_deref(), Some(name));
        }
        for name in ["%tid", "%tid.q", "%envreg32", "%envreg01", "%pm8", "%laneid.x", "%r1"] {
            assert_eq!(SpecialRegister::from_name(name), None);
        }
    }
}
