// Package predict predicts round trips between regions that were not measured. It says how
// wrong a prediction may be, and which pairs to measure next. The package is pure: the
// same samples and seed give the same predictions.
//
// Vivaldi moves one coordinate at a time, when two nodes exchange messages. This package
// knows all samples, so it fits a map of the regions to all samples at once. It fits
// several maps, each without some of the samples. The samples that were left out show how
// wrong the map is. A prediction is the mean of the maps, corrected by their errors
// between regions that are similar to the two regions.
//
//	predict.go   the model: samples in, predictions and their errors out
//	clean.go     rejects samples that contradict physics or other samples
//	space.go     the map, and its fit
//	local.go     the correction, and the calibration of errors
//	next.go      which pairs to measure next
//	table.go     a predictor for a topology.View
package predict
