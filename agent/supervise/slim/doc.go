// Package slim embeds the executable of cmd/nusa-supervise if the build includes it (build
// tag slim, set by `make build`). The package writes the executable to a file for an agent,
// which starts one supervisor for each task.
//
//	slim.go   writing the executable
//	embed.go  the executable, with the build tag slim
//	none.go   no executable, without the build tag slim
package slim
