"use strict";

window.SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#documentation",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // asks nobody outside
});
