package main

var info = object{
	"title": "Nusa", "version": "v1", "license": object{"name": "Apache 2.0", "identifier": "Apache-2.0"},
	"description": "The API of a federation, from the same definitions as the gRPC API. Any global server serves it for the federation. " +
		"Any server of a region serves it for its own region. A call that the server does not serve fails with 404 and the code UNIMPLEMENTED. " +
		"Fields with their default value are absent in responses. Whole numbers of 64 bits are strings.",
}

// What descriptions of streams add to the comments of the protos.
const (
	streamText = "The response is a stream: a JSON object on each line, or server-sent events with `Accept: text/event-stream`. " +
		"Empty lines and comments mean that the stream lives. A stream that fails ends with `{\"error\": PROBLEM}`, as an event of the type `error`. " +
		"The id of an event, if it has one, is what Last-Event-ID takes."
	linesText = "Request and response are streams with a JSON object on each line. A stream that fails ends with `{\"error\": PROBLEM}`."
	execText  = "Request and response are streams with a JSON object on each line. The first object has start. " +
		"A browser opens a WebSocket at the same path, with the subprotocol nusa.exec.v1: each message is such an object. " +
		"The access token comes as a further subprotocol nusa.token.TOKEN, or as the first message {\"token\": TOKEN}, and never in the address."
)

var securitySchemes = object{
	"token":       object{"type": "http", "scheme": "bearer", "description": "An access token: `nusa login`, or `nusa auth token create`."},
	"certificate": object{"type": "mutualTLS", "description": "The certificate of an operator or a member of the federation."},
}

var responses = object{
	"Problem": object{"description": "The request failed.", "content": object{"application/problem+json": object{"schema": ref("Problem")}}},
	"Unauthenticated": object{
		"description": "The request has neither an access token nor a certificate that the server accepts.",
		"headers":     object{"WWW-Authenticate": object{"schema": object{"type": "string"}}},
		"content":     object{"application/problem+json": object{"schema": ref("Problem")}},
	},
	"Later": object{
		"description": "The server cannot serve the request now.",
		"headers":     object{"Retry-After": object{"description": "Seconds.", "schema": object{"type": "string"}}},
		"content":     object{"application/problem+json": object{"schema": ref("Problem")}},
	},
}

var commonSchemas = object{
	"JobFile": object{
		"type": "object", "description": "A job file, in YAML or JSON: see docs/job-file.md.",
	},
	"ErrorFrame": object{
		"type": "object", "description": "The last object of a stream that fails.", "required": []any{"error"},
		"additionalProperties": false, "properties": object{"error": ref("Problem")},
	},
	"Problem": object{
		"type": "object", "description": "What went wrong, as RFC 9457 has it.",
		"required":             []any{"type", "title", "status", "detail", "code"},
		"additionalProperties": false,
		"properties": object{
			"type": text("urn:nusa:error: with the reason or the code"), "title": text("The status in words."),
			"status": object{"type": "integer"}, "detail": text("What went wrong, where, and what to do."),
			"instance": text("The path of the request."), "code": text("The gRPC code, for example NOT_FOUND."),
			"reason":      text("The cause, for programs, for example NO_LEADER."),
			"metadata":    object{"type": "object", "description": "What belongs to the reason.", "additionalProperties": object{"type": "string"}},
			"problems":    object{"type": "array", "description": "The faults of the input.", "items": ref("Fault")},
			"retry_after": object{"type": "number", "description": "Seconds after which a retry may help."},
		},
	},
	"Fault": object{
		"type": "object", "description": "One fault of an input.", "required": []any{"message"}, "additionalProperties": false,
		"properties": object{
			"field": text("The path of the field, for example groups.web.count."),
			"line":  object{"type": "integer"}, "column": object{"type": "integer"},
			"message": text("What is wrong, and what to do."), "reason": text("Why a valid input is refused."),
		},
	},
}

func text(description string) object { return object{"type": "string", "description": description} }
