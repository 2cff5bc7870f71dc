package job

import (
	"fmt"
	"math/rand"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var words = []string{"", "a", "process", "docker", "web", "A b", "../x", "/abs", "true", "node.cpu_cores >= 1", "${NUSA_PORT_x}", "\n", "sha256:zz", "https://x/y"}
var nums = []int64{0, 0, 1, 2, -1, 100, 101, 5000, 70000}

func fillMsg(m protoreflect.Message, r *rand.Rand, depth int) {
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		f := fs.Get(i)
		if r.Intn(3) == 0 || depth > 6 {
			continue
		}
		one := func() protoreflect.Value {
			switch f.Kind() {
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(words[r.Intn(len(words))])
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes([]byte("x"))
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(r.Intn(2) == 0)
			case protoreflect.Int32Kind, protoreflect.Sint32Kind:
				return protoreflect.ValueOfInt32(int32(nums[r.Intn(len(nums))]))
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(nums[r.Intn(len(nums))] << uint(r.Intn(24)))
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(uint32(r.Intn(3)))
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(uint64(r.Intn(3)))
			case protoreflect.DoubleKind:
				return protoreflect.ValueOfFloat64(float64(r.Intn(400) - 200))
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.Intn(4)))
			}
			panic(f.Kind().String())
		}
		switch {
		case f.IsMap():
			mp := m.Mutable(f).Map()
			for range 1 + r.Intn(2) {
				k := protoreflect.ValueOfString(words[1+r.Intn(5)]).MapKey()
				if f.MapValue().Kind() == protoreflect.MessageKind {
					v := mp.NewValue()
					fillMsg(v.Message(), r, depth+1)
					mp.Set(k, v)
				} else {
					mp.Set(k, protoreflect.ValueOfString(words[r.Intn(len(words))]))
				}
			}
		case f.IsList():
			l := m.Mutable(f).List()
			for range 1 + r.Intn(2) {
				if f.Kind() == protoreflect.MessageKind {
					v := l.NewElement()
					fillMsg(v.Message(), r, depth+1)
					l.Append(v)
				} else {
					l.Append(one())
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			fillMsg(m.Mutable(f).Message(), r, depth+1)
		default:
			m.Set(f, one())
		}
	}
}

func good() *nusav1.JobSpec {
	s, err := Parse([]byte("name: a\ngroups: {web: {count: 2, ports: {x: {to: 80}}, tasks: {a: {driver: process, config: {command: x}, check: {http: {port: x, path: /}, interval: 10s, timeout: 2s}}}}}\n"), "a.yaml")
	if err != nil {
		panic(err)
	}
	Default(s)
	return s
}

// TestQuietCheckFindsEveryFault: the first pass over a spec, which builds no paths, finds
// a fault whenever the second pass reports a fault. Most specs of the test have one fault:
// a field of a valid spec has a random value.
func TestQuietCheckFindsEveryFault(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	single, bad := 0, map[string]int{}
	for range 20_000 {
		s := good()
		g := s.Groups["web"]
		ms := []protoreflect.Message{s.ProtoReflect(), g.ProtoReflect(), g.Tasks["a"].ProtoReflect()}
		m := ms[r.Intn(3)]
		tmp := m.New()
		fillMsg(tmp, r, 2)
		fs := m.Descriptor().Fields()
		f := fs.Get(r.Intn(fs.Len()))
		if f.Name() == "groups" || f.Name() == "tasks" {
			continue
		}
		if tmp.Has(f) {
			m.Set(f, tmp.Get(f))
		} else {
			m.Clear(f)
		}
		q, l := &checker{quiet: true}, &checker{}
		q.job(s)
		l.job(s)
		if len(l.errs) == 1 {
			single++
		}
		if q.wrong != (len(l.errs) > 0) {
			bad[fmt.Sprint(f.Name(), " ", l.errs)]++
		}
		q, l = &checker{quiet: true}, &checker{}
		q.supported(s)
		l.supported(s)
		if q.wrong != (len(l.errs) > 0) {
			bad["supported "+string(f.Name())]++
		}
	}
	if single < 1000 {
		t.Errorf("only %d of the specs had one fault", single)
	}
	for k, n := range bad {
		t.Errorf("%s: %d", k, n)
	}
}
