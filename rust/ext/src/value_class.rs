//! Value classes: equality across backends, hash, repr and pickling, all by fields.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// Makes a frozen class of values: its constructor, getters, `__eq__`, `__hash__`, `__repr__` and
/// `__reduce__`.
///
/// ```ignore
/// value! {
///     /// A point.
///     PyPoint is "Point" of "shoal" {
///         /// Its distance from the left.
///         x: u32 = whole,
///     }
///     optional "(x, y=0)" {
///         y: u32 = whole or 0,
///     }
///     older { left: x }
/// }
/// ```
///
/// After the type of a field stands the function that converts its argument: it gets the argument
/// and the field's name. Optional fields come last; the signature shows their defaults. An older name
/// of a field is one more getter.
macro_rules! value {
    (
        $(#[$about:meta])*
        $class:ident is $name:literal of $module:literal {
            $( $(#[$doc:meta])* $field:ident: $kind:ty = $convert:ident ),+ $(,)?
        }
        $( optional $signature:literal {
            $( $option:ident: $of:ty = $check:ident or $default:expr ),+ $(,)?
        } )?
        $( older { $( $old:ident: $new:ident ),+ $(,)? } )?
    ) => {
        $(#[$about])*
        #[pyo3::pyclass(frozen, get_all, name = $name, module = $module)]
        pub(crate) struct $class {
            $( $(#[$doc])* pub(crate) $field: $kind, )+
            $($( pub(crate) $option: $of, )+)?
        }

        impl $class {
            const FIELDS: &'static [&'static str] =
                &[$( stringify!($field), )+ $($( stringify!($option), )+)?];
        }

        #[pyo3::pymethods]
        impl $class {
            #[new]
            #[pyo3(
                signature = ($( $field, )+ $($( $option = $crate::convert::Arg::Default, )+)?)
                $(, text_signature = $signature)?
            )]
            #[allow(clippy::too_many_arguments, reason = "the fields of the contract")]
            fn new(
                $( $field: &Bound<'_, PyAny>, )+
                $($( $option: $crate::convert::Arg<'_>, )+)?
            ) -> PyResult<Self> {
                Ok(Self {
                    $( $field: $convert($field, stringify!($field))?, )+
                    $($( $option: $option.or($default, |v| $check(v, stringify!($option)))?, )+)?
                })
            }

            $($(
                #[doc = concat!("The older name of `", stringify!($new), "`.")]
                #[getter]
                fn $old<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                    pyo3::IntoPyObjectExt::into_bound_py_any(&self.$new, py)
                }
            )+)?

            fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
                $crate::value_class::eq(slf, other, Self::FIELDS)
            }

            fn __hash__(slf: &Bound<'_, Self>) -> PyResult<isize> {
                $crate::value_class::fields(slf, Self::FIELDS)?.hash()
            }

            fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
                $crate::value_class::repr(slf, Self::FIELDS)
            }

            // The public class is one that the backend of any process provides.
            fn __reduce__<'py>(
                slf: &Bound<'py, Self>,
            ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, pyo3::types::PyTuple>)> {
                let fields = $crate::value_class::fields(slf, Self::FIELDS)?;
                Ok(($crate::value_class::public_class(slf)?, fields))
            }
        }
    };
}
pub(crate) use value;

type Names = &'static [&'static str];

/// The values of fields, with tuples for lists.
pub(crate) fn fields<'py>(
    value: &Bound<'py, PyAny>,
    names: Names,
) -> PyResult<Bound<'py, PyTuple>> {
    let fields: PyResult<Vec<_>> = names
        .iter()
        .map(|name| {
            let field = value.getattr(*name)?;
            match field.cast::<PyList>() {
                Ok(list) => Ok(list.to_tuple().into_any()),
                Err(_) => Ok(field),
            }
        })
        .collect();
    PyTuple::new(value.py(), fields?)
}

/// Whether both objects have the same public class, which may come from either backend.
pub(crate) fn same_class(left: &Bound<'_, PyAny>, right: &Bound<'_, PyAny>) -> PyResult<bool> {
    let (left, right) = (left.get_type(), right.get_type());
    let same = |attribute: &str| left.getattr(attribute)?.eq(right.getattr(attribute)?);
    Ok(left.is(&right) || (same("__name__")? && same("__module__")?))
}

pub(crate) fn eq(
    left: &Bound<'_, PyAny>,
    right: &Bound<'_, PyAny>,
    names: Names,
) -> PyResult<Py<PyAny>> {
    if !same_class(left, right)? {
        return Ok(left.py().NotImplemented());
    }
    let equal = fields(left, names)?.eq(fields(right, names)?)?;
    equal.into_py_any(left.py())
}

pub(crate) fn repr(value: &Bound<'_, PyAny>, names: Names) -> PyResult<String> {
    let fields: PyResult<Vec<_>> = names
        .iter()
        .map(|name| Ok(format!("{name}={}", value.getattr(*name)?.repr()?)))
        .collect();
    let class = value.get_type().name()?;
    Ok(format!("{class}({})", fields?.join(", ")))
}

/// The class of this name that `shoal` exports: that of the backend in use.
pub(crate) fn public_class<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let class = value.get_type();
    value.py().import(class.module()?)?.getattr(class.name()?)
}
