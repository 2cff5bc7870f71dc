package master

import (
	"testing"

	"github.com/google/uuid"
)

func TestIDsAreRandomAndUnique(t *testing.T) {
	var s idSource
	seen := map[string]bool{}
	for range 10_000 {
		id := s.next()
		u, err := uuid.Parse(id)
		if err != nil || u.Version() != 4 || u.Variant() != uuid.RFC4122 || seen[id] {
			t.Fatalf("%q: %v, version %d, seen before: %v", id, err, u.Version(), seen[id])
		}
		seen[id] = true
	}
}

func BenchmarkID(b *testing.B) {
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = uuid.NewString()
		}
	})
	b.Run("many", func(b *testing.B) {
		var s idSource
		b.ReportAllocs()
		for b.Loop() {
			s.next()
		}
	})
}
