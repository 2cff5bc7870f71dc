// Package job handles job specifications. It reads job files (YAML or JSON) into the
// message nusa.v1.JobSpec and writes them back, fills in defaults, checks every limit, and
// compares two specs.
//
// A client calls Parse. A server calls Default, Validate and Unsupported for each submit,
// because it does not rely on the client.
//
//   - read.go, scalar.go: files to messages; positions of problems
//   - write.go: messages to files
//   - schema.go: how the file form of a message differs from its proto form
//   - forms.go: examples and hints for errors about the form of a file
//   - quantity.go: sizes, CPU and durations as text
//   - default.go: bounds and defaults, also for other packages; export.go: a file without them, and a commented job file to start from
//   - validate.go, validate_group.go, validate_files.go: the limits of a spec, also of services
//   - check.go: the limits of health checks, of schedules, of parameterized jobs and of retry policies
//   - driver.go, driver_engine.go: the settings of the drivers, also of plugins
//   - variables.go: references of the form ${NUSA_…}
//   - support.go: what is not supported yet; accelerators that nobody has; warnings and notes for the author
//   - origin.go: origin records
//   - problem.go: problems with their positions
//   - diff.go: what changes between two specs
//   - hash.go: a hash that changes when a group's instances must be replaced
//   - ask.go: what an instance of a group needs of a node
//   - disconnect.go: what happens on lost contact: which leases bind, and the limits
//   - workflow.go: the limits of workflows, and the jobs of their steps
//   - subworkflow.go: workflows in steps, outputs of runs, and schedules of workflows
//
// The folder config has the forms of the drivers' configs. The folder doc reads YAML and JSON into a tree
// with positions, and writes such trees. The folder vars fills in the variables of a file. The folder times
// says when a schedule fires, the folder steps which steps of a workflow depend on which others, and the
// folder confine compares a job with the limits of its namespace.
package job
