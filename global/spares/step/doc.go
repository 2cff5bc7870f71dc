// Package step decides what follows for a spare: hosts that are held for an upgrade. A state and what is
// known now give the next state, and effects. Every effect but Tell is given again until what it asks for
// is known, so a server that continues after another one makes the same calls with the same keys.
//
//	step.go   Step, and what each phase does
//	types.go  the state, what is known, and the effects
package step
