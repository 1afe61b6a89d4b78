"""The reader of optimised programs, on a small one written by hand."""

from tests.compiled_program import CompiledProgram

TEXT = """\
HloModule small, is_scheduled=true, input_output_alias={ {0}: (3, {}, may-alias), {2}: (5, {}, must-alias) }, x={}

FileNames
1 "/a/model.py"
2 "/a/norms.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=27 end_line=27 column=1 end_column=2}
2 {file_name_id=2 function_name_id=1 line=8 end_line=9 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%fused_move (p: bf16[4,8]) -> f32[8,4] {
  %p = bf16[4,8]{1,0} parameter(0)
  %c = f32[4,8]{1,0} convert(%p)
  ROOT %t = f32[8,4]{1,0} transpose(%c), dimensions={1,0}, metadata={op_name="jit(f)/transpose" stack_frame_id=2}
}

%fused_add (p.1: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} add(%p.1, %p.1)
}

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %i = s32[] get-tuple-element(%s), index=0
  %y = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused_add, metadata={op_name="jit(f)/add" stack_frame_id=1}
  ROOT %r = (s32[], f32[8]{0}) tuple(%i, %y)
}

%condition (s.1: (s32[], f32[8])) -> pred[] {
  %s.1 = (s32[], f32[8]{0}) parameter(0)
  ROOT %k = pred[] constant(true)
}

ENTRY %main (w: bf16[4,8], z: (s32[], f32[8])) -> f32[8,4] {
  %w = bf16[4,8]{1,0} parameter(0)
  %z = (s32[], f32[8]{0}) parameter(1)
  %loop = (s32[], f32[8]{0}) while(%z), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"15"}}
  %copy.1 = bf16[4,8]{1,0} copy(%w)
  ROOT %m = f32[8,4]{1,0} fusion(%copy.1), kind=kLoop, calls=%fused_move
}
"""


def test_launches_moves_and_places():
    program = CompiledProgram(TEXT)
    assert [(one.name, times) for one, times in program.launches] == [("y", 15), ("copy.1", 1), ("m", 1)]
    assert program.launch_count == 17
    y, copy, move = (one for one, _ in program.launches)
    assert [program.only_moves(one) for one in (y, copy, move)] == [False, True, True]
    assert (copy.bytes, move.bytes) == (64, 128)
    assert program.where(y) == "%y = f32[8]{0} fusion, jit(f)/add at /a/model.py:27"
    assert program.where(move).endswith("fusion, jit(f)/transpose at /a/norms.py:8")
    assert "copy.1" in program.where(copy)


def test_what_is_no_result_of_the_program_passes():
    program = CompiledProgram(TEXT)
    _, copy, move = (one for one, _ in program.launches)
    assert (program.passing_bytes(copy), program.passing_bytes(move)) == (64, 0)
    both = TEXT.replace(
        "ROOT %m = f32[8,4]{1,0} fusion(%copy.1), kind=kLoop, calls=%fused_move",
        """%m = (f32[8,4]{1,0}, f32[4,4]{1,0}) fusion(%copy.1), kind=kLoop, calls=%fused_move
  %g = f32[8,4]{1,0} get-tuple-element(%m), index=0
  %b = f32[32]{0} bitcast(%g)
  ROOT %out = (f32[32]{0}, bf16[4,8]{1,0}) tuple(%b, /*index=1*/%copy.1)""",
    )
    program = CompiledProgram(both)
    _, copy, move = (one for one, _ in program.launches)
    assert (program.passing_bytes(copy), program.passing_bytes(move)) == (0, 64)


def test_aliases():
    assert CompiledProgram(TEXT).aliases == {0: 3, 2: 5}
