package state

import (
	"fmt"
	"testing"
)

// BenchmarkReplace submits 25,000 jobs, and then another version of each, 40 in an entry. Level 16 stores no earlier
// versions. The figures are for one submit.
func BenchmarkReplace(b *testing.B) {
	const jobs, entry = 25_000, 40
	specs := [2][]byte{make([]byte, 400), make([]byte, 401)}
	for _, level := range []uint32{VersionLevel - 1, VersionLevel} {
		for version, what := range []string{"first", "second"} {
			b.Run(fmt.Sprintf("level%d/%s", level, what), func(b *testing.B) {
				n := 0
				l := &life{}
				for b.Loop() {
					took, bytes, mallocs := l.took, l.bytes, l.mallocs
					l = &life{b: b, st: New(), took: took, bytes: bytes, mallocs: mallocs}
					l.st.Apply(1, Command{SetLimits: &SetLimits{FeatureLevel: level}})
					for v := range version + 1 {
						if v == version {
							l.took, l.bytes, l.mallocs = took, bytes, mallocs
						}
						for from := 0; from < jobs; from += entry {
							var batch []Command
							for i := from; i < from+entry; i++ {
								c := own(fmt.Sprintf("job-%06d", i), "", "")
								c.NowUnixNano, c.SubmitLocalJob.Job.Spec = second, specs[v]
								batch = append(batch, c)
							}
							l.entry(batch, nil)
						}
					}
					n += jobs
				}
				b.ReportMetric(float64(l.took.Nanoseconds())/float64(n), "ns/submit")
				b.ReportMetric(float64(l.bytes)/float64(n), "B/submit")
				b.ReportMetric(float64(l.mallocs)/float64(n), "allocs/submit")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
