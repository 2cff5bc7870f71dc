// Package prediction measures how well round trips between regions are predicted
// from a few measured ones: `nusa bench topology`.
//
//	topology.go   options, measurement and result
package prediction
