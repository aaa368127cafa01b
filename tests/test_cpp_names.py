"""C++ names as compilers mangle them and as profilers spell them."""

import pytest

from tutorial_lib.cpp_names import argument_types, float_types, plain, template_arguments, torch_types


# Itanium's back-references: S_ is what the name mentioned first, S0_ second, …, in base 36; T_ an argument
@pytest.mark.parametrize("mangled, name", [
    ("_Z1fv", "f"),
    ("_ZN1a1bIiE1cEv", "a::b<int>::c"),
    ("_Z1fIfEvN2at6TensorE", "f<float>(at::Tensor)"),  # of parameters the identifiers, without their nesting
    ("_ZN1a1fINS_1bES1_EEvv", "a::f<a::b, a::b>"),  # S_ a, S0_ a::f, S1_ a::b
    ("_ZN12_GLOBAL__N_11fIPKfLb1ELin2EEEvv", "(anonymous namespace)::f<float const*, true, -2>"),
    ("_ZN1fIJiDF16bDF16_EEE", "f<int, __bf16, _Float16>"),
    ("_Z1fISt5arrayIPcLm3EEEvv", "f<std::array<char*, 3>>"),
    ("_Z1fIA8_iPFvifELN1a1bE2EEvv", "f<int [8], void (int, float)*, (a::b)2>"),
])
def test_mangled_names_are_spelled_as_cplusplus_spells_them(mangled, name):
    assert plain(mangled) == name


@pytest.mark.parametrize("written, name", [
    ("f<(int)4, (bool)1, (unsigned int)-1>(int)", "f<4, true, -1>(int)"),  # Nsight's casts
    ("f<float, int=128, bool=0>(int)", "f<float, 128, false>(int)"),  # nvprof's
    ("f<(cudnnKernelDataType_t)0>", "f<(cudnnKernelDataType_t)0>"),
    ("_Z", "_Z"), ("_Z99", "_Z99"), ("plain", "plain"),
])
def test_casts_go_and_what_is_not_mangled_stays(written, name):
    assert plain(written) == name


def test_a_mangled_name_with_a_wrong_length_still_gives_its_identifiers():
    # 4flash asks for 5 letters: what follows, 3foo, is found all the same
    assert "foo" in plain("_ZN4flash3fooE")


def test_arguments_are_split_at_the_templates_own_commas():
    assert template_arguments("f<a<b, c>, d(e, f), g>(h)", 1) == ["a<b, c>", "d(e, f)", "g"]
    assert template_arguments("f<a, b<c", 1) == ["a", "b<c"]  # cut short
    assert template_arguments("f(a)", 1) == []


def test_types_are_those_that_torch_has_a_name_for():
    assert torch_types("unsigned int, long long, Tensor, c10::Half, __hip_fp8_e4m3_fnuz") == [
        "unsigned int", "long long", "c10::Half", "__hip_fp8_e4m3_fnuz"]
    assert float_types("int, float2, double, c10::complex<float>") == ["double", "c10::complex<float>"]


def test_parameters_of_functions_among_the_arguments_are_no_types_of_theirs():
    # float is an argument, double a parameter of g
    assert argument_types("f<int, g(at::Tensor, double)::{lambda()#1}, h<float> >", 1) == ["float"]
    assert argument_types("f<(anonymous namespace)::g<float> >", 1) == ["float"]
