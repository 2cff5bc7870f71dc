// Package gpu finds the accelerators of the host.
//
//	gpu.go    Host: what the kernel's driver and its tool say
//	parse.go  the texts of both; pure
//
// The program in the folder check prints them (make gpu-check).
//
// NVIDIA's library is not used: a program that opens it needs the host's C library and its
// loader, and nusa is one static program. The kernel's driver names the devices in
// /proc/driver/nvidia, and nvidia-smi, which comes with that driver, knows their memory and
// their health.
package gpu
