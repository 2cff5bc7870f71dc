// Package lazyregexp compiles a regular expression at its first use. A command of the CLI uses few of
// the expressions in its binary, and should not wait for the others.
//
//	lazyregexp.go  New
package lazyregexp
