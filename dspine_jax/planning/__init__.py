"""What a pair needs of a GPU, known without the GPU: memory by part, bytes per cycle, the compiled programs.

A pair is described by its two configurations alone; no weight is allocated. Imports go one way:
cli -> report, frontier_plot -> capacity, programs -> memory, traffic -> pair, gpu.
"""
