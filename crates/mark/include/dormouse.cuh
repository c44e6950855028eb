/* dormouse.cuh: marks where a kernel may stop half-way, for a checkpoint, and go on later.
 *
 *     for (int i = 0; i < steps; i++) {
 *         …
 *         DORMOUSE_CPT();
 *     }
 *
 * It does what `#pragma CPT` does in source that `dormouse nvcc` compiles, with any compiler for CUDA: nvcc, NVRTC, clang. The kernels have to be kept as PTX, too (-gencode
 * arch=compute_90,code=compute_90 and the like). ptxas warns that it does not know the pragma "cpt", and leaves it out; nothing else comes of it without Dormouse. In host code it is
 * nothing. docs/kernel-authors.md says where marks go and what they cost.
 */
#ifndef DORMOUSE_CUH
#define DORMOUSE_CUH

#if defined(__CUDA_ARCH__)
#define DORMOUSE_CPT() asm volatile(".pragma \"cpt\";" ::: "memory")
#else
#define DORMOUSE_CPT() ((void)0)
#endif

#endif
