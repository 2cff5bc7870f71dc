//go:build !slim

package slim

var executable []byte
