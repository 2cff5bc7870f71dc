// Package latency holds the matrix of round-trip times between regions, as the
// regions report it, for the active global server.
//
//	matrix.go   Matrix: the reported rows and the views made of them
//	load.go     LoadTracker: mean and variance of a region's load
//	predict.go  Predictor: predictions for pairs without a measurement
package latency
