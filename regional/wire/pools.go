package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// PoolPrefix and the name of a pool are the key of the document with its policy, a nusav1.PoolWeights.
const PoolPrefix = "pool/"

// WeightsToProto converts the weights of a policy.
func WeightsToProto(w pools.Weights) *nusav1.PoolWeights {
	return &nusav1.PoolWeights{Cpu: w.CPU, Memory: w.Memory, Quota: w.Quota}
}

// WeightsFromProto converts the weights of a policy.
func WeightsFromProto(w *nusav1.PoolWeights) pools.Weights {
	return pools.Weights{CPU: w.GetCpu(), Memory: w.GetMemory(), Quota: w.GetQuota()}
}

// ReadWeights reads the document with the policy of a pool.
func ReadWeights(d *state.Document) (pools.Weights, error) {
	var w nusav1.PoolWeights
	if err := proto.Unmarshal(d.Value, &w); err != nil {
		return pools.Weights{}, fmt.Errorf("document %s: %w", d.Key, err)
	}
	return WeightsFromProto(&w), nil
}
