// Package folder decides, by their paths alone, whether folders of a host are
// below allowed folders. An agent decides by it what jobs may mount, and its
// region foresees the decision by the same rule. It is pure.
//
//   - folder.go: the rule
package folder
