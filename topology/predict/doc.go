// Package predict predicts the round trip between two regions that was not
// measured, says how wrong the prediction may be, and which pair to measure
// next. It is pure: the same samples and seed give the same predictions.
//
// Vivaldi moves one coordinate at a time by gossip. Here all samples are known,
// so a map is fitted to all of them at once. This is done several times, each
// time without some of the samples: those samples show how wrong the map is.
// Then a prediction is corrected by the map's errors between regions that are
// similar to the two.
//
//	predict.go   the model: samples in, predictions and their errors out
//	clean.go     rejects samples that contradict physics or other samples
//	space.go     the map, and its fit
//	local.go     the correction, and the calibration of errors
//	next.go      which pairs to measure next
//	table.go     a predictor for a topology.View
package predict
