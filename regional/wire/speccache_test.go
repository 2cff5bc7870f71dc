package wire

import (
	"fmt"
	"strings"
	"testing"
)

// TestSpecCacheIsBounded: the cache exceeds neither its count nor its bytes.
func TestSpecCacheIsBounded(t *testing.T) {
	var c SpecCache
	for i := range 2 * maxCachedSpecs {
		c.store(strings.Repeat("x", 16<<10)+fmt.Sprint(i), &CachedSpec{})
		size := 0
		for rest := range c.specs {
			size += len(rest)
		}
		if n := len(c.specs); n > maxCachedSpecs || size > maxCachedSpecBytes {
			t.Fatalf("%d specs of %d bytes are cached", n, size)
		}
	}
}
