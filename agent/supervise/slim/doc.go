// Package slim embeds the executable of cmd/nusa-supervise, if the build includes it
// (tag slim, `make build`), and writes it for an agent, which starts one for each task.
//
//	slim.go   writing the executable
//	embed.go  the executable, with the tag slim
//	none.go   no executable, without the tag
package slim
