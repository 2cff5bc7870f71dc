package main

// virtflow are the paths of virtflow, which no proto describes.
var virtflow = object{
	"/schedule": object{"post": object{
		"operationId": "Virtflow_Schedule", "tags": []any{"Virtflow"},
		"summary":     "Schedule reserves room on a node for a virtual machine",
		"description": "The path of virtflow for Reservations.Create, in the namespace default.",
		"parameters":  []any{header("Idempotency-Key", "A retry with the same key, of at most 128 bytes, gets the same response.")},
		"requestBody": object{"required": true, "content": object{"application/json": object{"schema": ref("ScheduleRequest")}}},
		"responses":   virtflowResponses("The reservation was stored.", "ScheduleResponse"),
	}},
	"/result/{task_id}": object{
		"get": object{
			"operationId": "Virtflow_Result", "tags": []any{"Virtflow"},
			"summary":     "Result returns the node of a reservation, or why there is none",
			"description": "The path of virtflow for Reservations.Get.",
			"parameters":  []any{taskID},
			"responses":   virtflowResponses("The state of the reservation.", "ScheduleResult"),
		},
		"delete": object{
			"operationId": "Virtflow_Release", "tags": []any{"Virtflow"},
			"summary":     "Release gives the room of a reservation back",
			"description": "The path of virtflow for Reservations.Release.",
			"parameters":  []any{taskID},
			"responses":   virtflowResponses("The room is given back.", "ScheduleResult"),
		},
	},
}

var taskID = object{"name": "task_id", "in": "path", "required": true, "description": "The id that POST /schedule has returned.", "schema": object{"type": "string"}}

// virtflowSchemas are the bodies of virtflow.
var virtflowSchemas = object{
	"ScheduleRequest": object{
		"type": "object", "required": []any{"requested_cpu", "requested_memory"}, "additionalProperties": false,
		"properties": object{
			"requested_cpu":    object{"type": "number", "minimum": 0.001, "maximum": 10000, "description": "Cores."},
			"requested_memory": object{"type": "number", "minimum": 1, "maximum": 1 << 30, "description": "MiB."},
			"requested_pool":   text("The node pool. Default: the pool default."),
			"dedicated":        object{"type": "boolean", "description": "The node is shared with no other job."},
		},
	},
	"ScheduleResponse": object{
		"type": "object", "required": []any{"task_id"}, "additionalProperties": false, "properties": object{"task_id": text("The id of the reservation.")},
	},
	"ScheduleResult": object{
		"type": "object", "required": []any{"status"}, "additionalProperties": false,
		"properties": object{
			"status": object{"type": "string", "enum": []any{"processing", "completed", "failed", "released"}},
			"name":   text("The name of the node, if completed."), "ip": text("The address of the node, if completed."),
			"error": text("Why the reservation has failed."),
		},
	},
}

// virtflowResponses are the responses of an operation whose success has a schema.
func virtflowResponses(description, schema string) object {
	out := object{
		"200":     object{"description": description, "content": object{"application/json": object{"schema": ref(schema)}}},
		"401":     object{"$ref": "#/components/responses/Unauthenticated"},
		"default": object{"$ref": "#/components/responses/Problem"},
	}
	for _, status := range []string{"429", "503"} {
		out[status] = object{"$ref": "#/components/responses/Later"}
	}
	return out
}

// addVirtflow adds the paths of virtflow to a document.
func addVirtflow(doc object) {
	for path, item := range virtflow {
		at(doc, "paths")[path] = item
	}
	for name, schema := range virtflowSchemas {
		at(doc, "components", "schemas")[name] = schema
	}
	tags, _ := doc["tags"].([]any)
	doc["tags"] = append(tags, object{"name": "Virtflow", "description": "The paths of virtflow: see docs/reservations.md. Only global servers serve them."})
}
