// Package folder decides, by their paths alone, whether folders of a host are
// below allowed folders. An agent (agent/setup) decides with it what jobs may mount,
// and its region (regional/sched) predicts that decision. It is pure.
//
//   - folder.go: the rule
package folder
