// Package versions decides which earlier versions of a job are stored. It is pure.
//
//	versions.go  Keep and Within: which versions stay; Find: a version by its number or tag; CheckTag
package versions
