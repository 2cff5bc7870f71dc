// Package gpu finds the accelerators of the host.
//
//	gpu.go    Host: reads the files of the kernel's driver, and runs nvidia-smi
//	parse.go  reads the texts of both; pure
//
// The program in the folder check prints the accelerators of this machine (make gpu-check). The folder
// gputest makes the files of a pretended machine for tests.
//
// The package does not open NVIDIA's library NVML. That library needs the host's C library and
// its loader, and nusa is one static program. The kernel's driver lists the devices in
// /proc/driver/nvidia. nvidia-smi comes with that driver, and reports their memory and their
// health.
package gpu
