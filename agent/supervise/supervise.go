// Package supervise is the small process that stands by one task: it starts
// the command, keeps its output and its exit code, enforces its lease, and
// outlives the agent.
package supervise

// Main runs a supervisor and returns the process' exit code. The one argument
// is the folder of the run, where the driver has put a spec.
func Main(args []string) int {
	return 2
}
