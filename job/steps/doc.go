// Package steps checks which steps of a workflow depend on which others, and reads their outputs. It is pure.
//
//	condition.go  Condition: an expression over the ends of steps, and its value
//	graph.go      Graph: the order of steps; refuses cycles, unknown steps and steps that never start
//	nesting.go    which workflows contain which others
//	output.go     Output: the output of a step in a text or as a list
package steps
