// Package folder decides, by the paths alone, whether a folder of a host is below an
// allowed folder. An agent (agent/setup) uses the package to decide which folders jobs may
// mount. The region (regional/sched) uses it to predict the agent's decision. The package
// is pure.
//
//   - folder.go: the decision
package folder
